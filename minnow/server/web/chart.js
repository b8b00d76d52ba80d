// the frontier as a drawing: tokens a second for each sequence against tokens a second a device, both on log scales

const LEFT = 84; // on a phone letters are larger: room for "10,000" beside the title
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 46;
const WIDTH = 640;
const HEIGHT = 360;
const STEPS = [1, 2, 5];

// Draws points into an SVG, and says of the one that is pointed at what it is.
export function draw(svg, { x, y, points }, say) {
  const make = (tag, attributes, text = '') => {
    const made = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const across = scaleOf(points.map((point) => point.x), LEFT, WIDTH - RIGHT);
  const up = scaleOf(points.map((point) => point.y), HEIGHT - BOTTOM, TOP);
  const drawn = [...gridOf(make, across, up), ...titlesOf(make, x, y)];
  const strategies = [...new Set(points.map((point) => point.strategy))];
  for (const [i, strategy] of [...strategies.entries()].reverse()) { // the plan's own on top
    const own = points.filter((point) => point.strategy === strategy);
    const group = make('g', { class: own[0].is_own ? 'line own' : `line other-${i % 4}` });
    const places = own.map((point) => `${across.at(point.x)},${up.at(point.y)}`);
    group.append(make('polyline', { points: places.join(' ') }));
    for (const point of own) {
      const size = point.is_best ? 5 : 4;
      const circle = make('circle', { cx: across.at(point.x), cy: up.at(point.y), r: size, class: point.is_best ? 'best' : '' });
      circle.append(make('title', {}, point.words));
      circle.addEventListener('pointerenter', () => say(point.words));
      group.append(circle);
    }
    drawn.push(group);
  }
  svg.replaceChildren(...drawn, ...legendOf(make, strategies, points));
}

function scaleOf(values, from, to) {
  const low = Math.log10(Math.min(...values)) - 0.06;
  const high = Math.max(Math.log10(Math.max(...values)) + 0.06, low + 0.3);
  const at = (value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from);
  let ticks = ticksOf(low, high, STEPS);
  if (ticks.length > 8) ticks = ticksOf(low, high, [1]);
  if (ticks.length < 3) ticks = ticksOf(low, high, [1, 1.5, 2, 3, 4, 5, 6, 8]);
  return { at: (value) => Math.round(at(value) * 10) / 10, ticks };
}

function ticksOf(low, high, steps) {
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(value);
    }
  }
  return found;
}

function gridOf(make, across, up) {
  const label = (value) => value.toLocaleString('en', { maximumSignificantDigits: 3 });
  const bottom = HEIGHT - BOTTOM;
  return [
    ...across.ticks.flatMap((value) => [
      make('line', { class: 'grid', x1: across.at(value), x2: across.at(value), y1: TOP, y2: bottom }),
      make('text', { x: across.at(value), y: bottom + 16, 'text-anchor': 'middle' }, label(value)),
    ]),
    ...up.ticks.flatMap((value) => [
      make('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: up.at(value), y2: up.at(value) }),
      make('text', { x: LEFT - 6, y: up.at(value) + 4, 'text-anchor': 'end' }, label(value)),
    ]),
  ];
}

function titlesOf(make, x, y) {
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  return [
    make('text', { class: 'title', x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, 'text-anchor': 'middle' }, x),
    make('text', { class: 'title', x: 14, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 14 ${middle})` }, y),
  ];
}

function legendOf(make, strategies, points) {
  return strategies.map((strategy, i) => {
    const isOwn = points.find((point) => point.strategy === strategy).is_own;
    const group = make('g', { class: isOwn ? 'line own' : `line other-${i % 4}` });
    const top = TOP + 16 + i * 18;
    group.append(
      make('polyline', { points: `${WIDTH - 128},${top} ${WIDTH - 100},${top}` }),
      make('circle', { cx: WIDTH - 114, cy: top, r: 4, class: 'best' }),
      make('text', { x: WIDTH - 92, y: top + 4 }, strategy),
    );
    return group;
  });
}
