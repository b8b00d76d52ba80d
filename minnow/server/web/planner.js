// the planner: what is asked for, in the form and in the address, and the plan that the server makes of it
import { asksForPlan, byId, ask, element, isAlone } from './server.js';
import { show } from './figures.js';

const PREFIX = '#plan';
const WAIT_MS = 150; // after the last letter
const WIDE = ['strategy', 'prefill']; // with the number of devices beside them
const isNarrow = window.matchMedia('(max-width: 48rem)');
const form = byId('asked');

let inputs = null; // as the server lists them; null until it has
let meanings = {};
let unknown = []; // of the address: the server says what is wrong with it
let asking = null; // the AbortController of the plan that is on its way
let timer = 0;

// ---------------------------------------------------------------- the form

function buildForm() {
  const groups = new Map();
  for (const input of inputs) {
    const title = input.is_more ? 'More' : input.group;
    groups.set(title, [...(groups.get(title) ?? []), input]);
  }
  const more = groups.get('More');
  groups.delete('More');
  if (more) groups.set('More', more);
  form.replaceChildren();
  for (const [title, members] of groups) {
    const group = element('details', '', 'group');
    const fields = document.createElement('div');
    fields.append(...members.map(fieldOf));
    group.append(element('summary', title), fields);
    group.open = !['More', ...(isNarrow.matches ? ['Traffic', 'Memory'] : [])].includes(title);
    form.append(group);
  }
}

function fieldOf(input) {
  const made = element('div', '', WIDE.includes(input.name) ? 'field wide' : 'field');
  const label = element('label', input.label);
  const field = document.createElement(input.options.length ? 'select' : 'input');
  field.name = input.name;
  field.title = input.hint;
  field.id = label.htmlFor = `plan-${input.name}`;
  const hint = element('span', input.hint);
  hint.id = `${field.id}-hint`;
  hint.hidden = true; // it is read out all the same
  field.setAttribute('aria-describedby', hint.id);
  if (input.options.length) field.append(...optionsOf(input.options));
  else field.placeholder = input.default;
  made.append(label, field, hint);
  return made;
}

function optionsOf(options) {
  const groups = new Map();
  return options.flatMap(({ value, label, group }) => {
    const option = new Option(label, value);
    if (!group) return [option];
    if (groups.has(group)) {
      groups.get(group).append(option);
      return [];
    }
    const made = document.createElement('optgroup');
    made.label = group;
    made.append(option);
    groups.set(group, made);
    return [made];
  });
}

// What is not as it would be anyway.
function query() {
  const given = inputs.map(({ name, options, default: usual }) => {
    const text = form.elements[name].value.trim();
    return [name, options.length && text === usual ? '' : text];
  });
  return new URLSearchParams([...given.filter(([, text]) => text), ...unknown]);
}

// What is asked: traffic counts once it is whole, and until then a hint says what it lacks.
function whole() {
  const found = query();
  const [first, second] = ['input', 'output'].map((name) => inputs.find((input) => input.name === name));
  const isHalf = found.has(first.name) !== found.has(second.name);
  const lacks = found.has(first.name) ? second : first;
  byId('plan-lacks').textContent = isHalf ? `Traffic is not counted yet: ${lacks.label} is empty.` : '';
  byId('plan-lacks').hidden = !isHalf;
  if (isHalf) for (const name of ['input', 'output', 'cached', 'rate']) found.delete(name);
  return found;
}

function fill(given) {
  for (const { name, options, default: usual } of inputs) {
    const field = form.elements[name];
    const text = given.get(name) ?? '';
    field.value = text || !options.length ? text : usual;
    if (options.length && field.selectedIndex < 0) { // the server says what is wrong with it
      field.append(new Option(text, text));
      field.value = text;
    }
    if (text && isHidden(field)) field.closest('details').open = true;
  }
}

const isHidden = (field) => !field.closest('details').open;

// ---------------------------------------------------------------- the plan

// Asks for the plan of the form; of several on their way the last counts.
async function update() {
  clearTimeout(timer);
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  byId('plan').ariaBusy = 'true';
  try {
    const response = await ask(`/plan?${whole()}`, { signal: mine.signal });
    show(await response.json(), meanings);
    say('');
  } catch (error) {
    if (!mine.signal.aborted) say(error.message);
  } finally {
    if (asking === mine) byId('plan').ariaBusy = 'false';
  }
}

// An error; what is shown below it is the plan before.
function say(text) {
  byId('plan-error').textContent = text;
  byId('plan-error').hidden = !text;
  byId('plan').classList.toggle('stale', Boolean(text));
}

function typed() {
  unknown = [];
  const text = String(query());
  history.replaceState(null, '', text ? `${PREFIX}?${text}` : PREFIX);
  clearTimeout(timer);
  timer = setTimeout(update, WAIT_MS);
}

// ---------------------------------------------------------------- the view

async function open() {
  if (!inputs) {
    try {
      const found = await (await ask('/plan/choices')).json();
      inputs = found.inputs;
      meanings = found.meanings;
    } catch (error) {
      return say(error.message);
    }
    buildForm();
  }
  const given = new URLSearchParams(location.hash.slice(PREFIX.length + 1));
  unknown = [...given].filter(([name]) => !inputs.some((input) => input.name === name));
  fill(given);
  update();
}

function look() {
  const isPlanner = asksForPlan();
  if (isAlone && !isPlanner) return location.replace(PREFIX); // there is no chat
  const wasPlanner = !byId('planner').hidden;
  document.body.classList.toggle('planning', isPlanner);
  byId('planner').hidden = !isPlanner;
  byId('talk').hidden = isPlanner;
  byId('to-planner').ariaCurrent = isPlanner ? 'page' : null;
  byId('to-chat').ariaCurrent = isPlanner ? null : 'page';
  if (isPlanner) open();
  if (isPlanner && !wasPlanner) byId('planner').focus();
}

form.addEventListener('input', typed);
form.addEventListener('submit', (event) => event.preventDefault());
window.addEventListener('hashchange', look);
look();
