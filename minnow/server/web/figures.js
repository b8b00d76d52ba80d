// a plan on the page: counts, bars, tables, commands, and the words beside numbers
import { byId, copy, element } from './server.js';
import { draw } from './chart.js';

let meanings = {};
let used = new Set(); // words of this plan

// Shows a plan in place of the one before.
export function show(plan, words) {
  meanings = words;
  used = new Set();
  const counts = plan.counts.map(({ count, name }) => `${count.text} by ${name}`);
  setText(byId('plan-title'), `${plan.title}: ${counts.join(', ')}`, plan.title);
  byId('counts').replaceChildren(...plan.counts.map((count, i) => countOf(count, plan.bars[i])), partsOf(plan.bars.at(-1)));
  byId('load').replaceChildren(...(plan.load ? [tableOf(plan.load)] : []));
  byId('frontier').hidden = !plan.frontier;
  if (plan.frontier) showFrontier(plan.frontier);
  byId('commands').replaceChildren(...commandsOf(plan.commands));
  const lacking = plan.no_times ? [element('p', plan.no_times, 'hint')] : [];
  byId('tables').replaceChildren(...lacking, ...[...plan.times, ...plan.tables].map(tableOf));
  const list = byId('meanings').querySelector('dl');
  const entries = Object.entries(meanings).filter(([word]) => used.has(word));
  list.replaceChildren(...entries.flatMap(([word, meaning]) => [element('dt', word), element('dd', meaning)]));
}

// The title as it is seen, and read out with the counts; not again where nothing has changed.
function setText(node, text, seen) {
  if (node.ariaLabel === text) return;
  node.ariaLabel = text;
  node.textContent = seen;
}

// ---------------------------------------------------------------- numbers

function statusOf(word) {
  used.add(word);
  const made = element('span', word, 'status');
  made.title = meanings[word] ?? '';
  return made;
}

// A number, or a text, with its status and what it rests on.
function numberOf(cell) {
  if (typeof cell === 'string') return [cell];
  return [cell.text, ...(cell.status ? [' ', statusOf(cell.status)] : []), ...(cell.note ? [` ${cell.note}`] : [])];
}

function tableOf({ title, head, rows, notes }) {
  const made = element('section', '', head.length > 2 ? 'table broad' : 'table');
  const scroll = element('div', '', 'scroll');
  const table = document.createElement('table');
  const heading = element('h3', '');
  heading.append(...numberOf(title));
  const areNumbers = head.map((_, i) => i > 0 && rows.some((row) => isNumber(row[i])));
  const top = table.createTHead().insertRow();
  top.append(...head.map((cell, i) => cellOf(i || cell ? 'th' : 'td', cell, areNumbers[i])));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    line.append(...row.map((cell, i) => cellOf(i ? 'td' : 'th', cell, areNumbers[i])));
    line.firstElementChild.scope = 'row';
  }
  scroll.tabIndex = 0; // so that keys scroll it
  scroll.role = 'region';
  scroll.ariaLabel = textOf(title);
  scroll.append(table);
  made.append(heading, scroll, ...notes.map((note) => element('p', note, 'hint')));
  return made;
}

const textOf = (cell) => (typeof cell === 'string' ? cell : cell.text);
const isNumber = (cell) => /^(\d|-$)/.test(textOf(cell)) && !textOf(cell).includes(', '); // else a sentence

function cellOf(tag, cell, isRight) {
  const made = element(tag, '', isRight ? 'number' : '');
  made.append(...numberOf(cell));
  return made;
}

// ---------------------------------------------------------------- memory

function countOf({ name, words, count, of, rows }, bar) {
  const made = element('section', '', 'count');
  const title = element('h3', name);
  title.append(element('span', ` ${words}`, 'hint'));
  const number = element('p', '', 'much');
  number.append(element('strong', count.text), ' ', statusOf(count.status), element('span', ` ${of}`));
  const list = document.createElement('dl');
  for (const [term, value] of rows) {
    const pair = document.createElement('div');
    const definition = document.createElement('dd');
    definition.append(...numberOf(value));
    pair.append(element('dt', term), definition);
    list.append(pair);
  }
  made.append(title, number, barOf(bar), list);
  return made;
}

function barOf({ name, memory, parts }) {
  const made = element('div', '', 'bar');
  made.role = 'img';
  const words = parts.map((part) => `${part.name} ${part.decimal}`);
  made.ariaLabel = `Memory of the fullest rank, ${memory.text}, ${name}: ${words.join(', ')}`;
  for (const part of parts) {
    const piece = element('span', '', part.kind);
    piece.style.flexGrow = part.share;
    piece.title = `${part.name}: ${part.decimal} = ${part.binary}, ${part.status}`;
    made.append(piece);
  }
  return made;
}

// The parts of a bar as a table, each with the colour it has there.
function partsOf({ name, memory, parts }) {
  const number = (text, status) => ({ text, status, note: '' });
  const rows = parts.map((part) => [part.name, number(part.decimal, part.status), part.binary, percent(part.share), part.note]);
  const head = ['', 'decimal', 'binary', 'share', ''];
  const title = { ...memory, text: `Memory of the fullest rank: ${memory.text}`, note: name };
  const made = tableOf({ title, head, rows, notes: [] });
  made.querySelectorAll('tbody th').forEach((cell, i) => cell.prepend(element('span', '', `swatch ${parts[i].kind}`)));
  return made;
}

const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;

// ---------------------------------------------------------------- the frontier and the commands

function showFrontier(frontier) {
  byId('frontier-title').querySelector('.status').replaceWith(statusOf(frontier.status));
  draw(byId('chart'), frontier, (text) => (byId('point').textContent = text));
  byId('point').textContent = 'Filled: no other point has more of one without less of the other.';
  const more = element('details', '');
  const { notes } = frontier;
  more.append(element('summary', frontier.table.title), tableOf(frontier.table));
  byId('frontier-more').replaceChildren(...notes.map((note) => element('p', note, 'hint')), more);
}

function commandsOf({ plan, serving, lacking }) {
  const made = [plan, ...serving].map(commandOf);
  return lacking ? [...made, element('p', lacking, 'hint')] : made;
}

function commandOf({ title, text, status, notes, reasons = [] }) {
  const made = element('section', '', 'command');
  const line = element('h3', title);
  if (status) line.append(' ', statusOf(status));
  const button = element('button', 'Copy');
  button.type = 'button';
  button.ariaLabel = `Copy: ${title}`;
  button.onclick = () => copy(text, button);
  const pre = document.createElement('pre');
  pre.tabIndex = 0;
  pre.ariaLabel = title;
  pre.append(element('code', text));
  const row = element('div', '', 'row');
  row.append(line, button);
  made.append(row, pre);
  for (const [words, lines] of [['To be known', notes], ['Why each word is there', reasons.map((pair) => pair.join(': '))]]) {
    if (!lines.length) continue;
    const more = document.createElement('details');
    const list = document.createElement('ul');
    list.append(...lines.map((each) => element('li', each)));
    more.append(element('summary', `${words} (${lines.length})`), list);
    made.append(more);
  }
  return made;
}
