// the page: a conversation, and the settings of its answers
import {
  Failure, ask, byId, copy, counted, duration, element, eventsOf, grouped, keep, learnModel, model, rate, recall, watch,
} from './server.js';

const scroller = byId('scroller');
const chat = byId('chat');
const question = byId('question');
const settings = byId('settings');
const fields = [...settings.querySelectorAll('[name]')];
const TEXT_FIELDS = ['system', 'stop']; // all others are numbers
// In characters. What a frame shows anew is never more than this, however long an answer gets.
const PARAGRAPH_LENGTH = 2000; // after which a paragraph goes on in a next one, at the next line
const PLAIN_LENGTH = 10_000; // of a paragraph without lines, after which it is shown without code and bold

let exchanges = []; // the conversation: questions with their answers
let streaming = null; // the AbortController of the answer that comes in

// ---------------------------------------------------------------- the conversation

class Exchange {
  constructor(text) {
    this.question = text;
    this.view = byId('exchange').content.firstElementChild.cloneNode(true);
    this.part('.question').textContent = text;
    this.part('.copy').onclick = (event) => copy(this.answer, event.target);
    this.part('.again').onclick = () => {
      question.focus();
      answer(this);
    };
    this.clear();
  }

  part(selector) {
    return this.view.querySelector(selector);
  }

  clear() {
    Object.assign(this, { answer: '', reasoning: '', error: '', end: '', isRunning: false, isDue: false, restMs: 0 });
    Object.assign(this, { usage: null, sentAt: performance.now(), firstAt: 0, lastAt: 0, firstTokens: 0 });
  }

  take(event) {
    if (event.error) throw new Failure(event.error.message, event.error);
    this.usage = event.usage ?? this.usage;
    const choice = event.choices[0];
    if (!choice) return; // the last event has the totals only
    this.lastAt = performance.now();
    if (!this.firstAt) {
      this.firstAt = this.lastAt;
      this.firstTokens = this.usage?.completion_tokens ?? 1;
    }
    this.answer += choice.delta.content ?? '';
    this.reasoning += choice.delta.reasoning ?? choice.delta.reasoning_content ?? '';
    if (choice.finish_reason === 'length') this.end = 'cut off by the limit';
    this.paintSoon();
  }

  paintSoon() {
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => requestAnimationFrame(() => {
      if (this.isDue) this.paint();
    }), this.restMs);
  }

  paint() {
    this.isDue = false;
    const startedAt = performance.now();
    const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 8;
    this.view.classList.toggle('running', this.isRunning);
    this.part('.reasoning').hidden = !this.reasoning;
    grow(this.part('.reasoning div'), this.reasoning);
    this.part('.error').hidden = !this.error;
    this.part('.error').textContent = this.error;
    this.part('.copy').hidden = this.isRunning || !this.answer;
    this.part('.again').hidden = this.isRunning;
    this.part('.again').textContent = this.error ? 'Try again' : 'Regenerate';
    this.part('.numbers').textContent = this.numbers().map((words) => words.replaceAll(' ', '\u00a0')).join(' \u00b7 ');
    render(this.part('.answer'), this.answer);
    const end = scroller.scrollHeight;
    if (isAtEnd) scroller.scrollTop = end; // a reader who scrolled up stays where they are
    this.restMs = 3 * (performance.now() - startedAt); // however long an answer gets, the page has time for its reader
  }

  numbers() {
    if (!this.firstAt) return this.isRunning ? ['waiting for the first token'] : [this.end].filter(Boolean);
    const seconds = (this.lastAt - this.firstAt) / 1000;
    const found = [`first token ${duration(this.firstAt - this.sentAt)}`];
    if (this.usage) {
      const { completion_tokens: tokens, prompt_tokens: prompt, prompt_tokens_details: details } = this.usage;
      if (seconds > 0) found.push(`${rate((tokens - this.firstTokens) / seconds)} tokens/s`);
      found.push(counted(tokens));
      if (!this.isRunning) found.push(`prompt ${counted(prompt)}, ${grouped(details?.cached_tokens ?? 0)} cached`);
    }
    return this.end ? [...found, this.end] : found;
  }
}

async function answer(exchange) {
  const controller = new AbortController();
  streaming = controller;
  exchange.clear();
  exchange.isRunning = true;
  try {
    exchange.paint();
    scroller.scrollTop = scroller.scrollHeight;
    showStreaming();
    for await (const event of eventsOf(await begin(exchange, controller.signal))) exchange.take(event);
  } catch (error) {
    if (controller.signal.aborted) {
      exchange.end = 'stopped';
    } else {
      exchange.error = error instanceof Failure ? error.message : `the stream broke off: ${error.message}`;
      fields.find((field) => field.name === error.param)?.setAttribute('aria-invalid', 'true');
    }
  } finally { // nothing may leave the page with a Stop that stops nothing
    exchange.isRunning = false;
    if (streaming === controller) streaming = null;
    showStreaming();
    exchange.paint();
  }
}

// The response to what is asked; asked again where the server has begun anew with another model.
async function begin(exchange, signal) {
  const send = () => ask('/v1/chat/completions', { body: bodyFor(exchange), signal });
  try {
    return await send();
  } catch (error) {
    if (error.code !== 'model_not_found' || !(await learnModel())) throw error;
    return send();
  }
}

function showStreaming() {
  byId('send').textContent = streaming ? 'Stop' : 'Send';
  byId('send').classList.toggle('primary', !streaming);
  chat.ariaBusy = String(streaming !== null); // a screen reader reads the answer when it is whole
  byId('welcome').hidden = exchanges.length > 0;
}

function send() {
  if (!question.value.trim() || streaming) return;
  const exchange = new Exchange(question.value);
  exchanges.push(exchange);
  chat.append(exchange.view);
  question.value = '';
  fitQuestion();
  answer(exchange);
}

function startAnew() {
  streaming?.abort();
  streaming = null;
  exchanges = [];
  chat.replaceChildren();
  showStreaming();
  question.focus();
}

// The body as JSON. Numbers are written as they were typed: a seed of 64 bits would not survive a float.
function bodyFor(exchange) {
  const given = Object.fromEntries(fields.map((field) => [field.name, field.value]).filter(([, text]) => text.trim()));
  const said = exchanges.filter((one) => one.answer || one === exchange); // questions without an answer never happened
  const messages = said.flatMap((one) => [
    { role: 'user', content: one.question },
    ...(one === exchange ? [] : [{ role: 'assistant', content: one.answer }]),
  ]);
  if (given.system) messages.unshift({ role: 'system', content: given.system });
  const body = {
    model: model ?? undefined,
    messages,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    stop: given.stop?.split('\n').filter(Boolean).map(unescaped),
  };
  const numbers = Object.entries(given).filter(([name]) => !TEXT_FIELDS.includes(name));
  const members = numbers.map(([name, text]) => `,${JSON.stringify(name)}:${numeral(text.trim())}`);
  return JSON.stringify(body).slice(0, -1) + members.join('') + '}';
}

// What was typed as a JSON number; as a string where it is none, so that the server says what is wrong with it.
function numeral(text) {
  if (/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return text;
  return JSON.stringify(Number.isFinite(Number(text)) ? Number(text) : text);
}

function unescaped(text) {
  return text.replace(/\\([nt\\])/g, (_, letter) => ({ n: '\n', t: '\t', '\\': '\\' })[letter]);
}

// ---------------------------------------------------------------- text on the page

// Shows a text that grows as paragraphs and code. Its last two blocks may still change; all before them are settled,
// and are not looked at again.
function render(container, text) {
  const nodes = (container.nodes ??= []);
  const first = text ? Math.max(nodes.length - 2, 0) : 0;
  const blocks = blocksOf(text, nodes[first]);
  blocks.forEach((block, i) => {
    let node = nodes[first + i];
    if (node?.className !== block.kind) {
      const made = block.kind === 'code' ? newCode() : element('p', '', block.kind);
      if (node) node.replaceWith(made);
      else container.append(made);
      nodes[first + i] = node = made;
    }
    node.start = block.start;
    if (block.kind === 'code') showCode(node, block);
    else showText(node, block.text);
  });
  for (const node of nodes.splice(first + blocks.length)) node.remove();
}

function newCode() {
  const node = element('div', '', 'code');
  const button = element('button', 'Copy');
  button.type = 'button';
  button.onclick = () => copy(node.source, button);
  const pre = element('pre', '');
  pre.append(element('code', ''));
  node.append(element('span', ''), button, pre);
  return node;
}

function showCode(node, { text, language }) {
  const label = node.firstElementChild;
  if (label.textContent !== language) label.textContent = language;
  grow(node.querySelector('code'), text);
  node.source = text;
}

function showText(node, text) {
  if (node.source === text) return;
  node.source = text;
  if (text.length > PLAIN_LENGTH) return grow(node, text);
  node.replaceChildren();
  for (const part of inline(text)) node.append(part);
}

// Makes a text longer or shorter, and lets what stays stay, with what the reader has selected in it. It gets shorter
// where its last characters turn out to be the end of a block.
function grow(node, text) {
  const shown = node.firstChild;
  const isText = node.childNodes.length === 1 && shown.nodeType === Node.TEXT_NODE;
  if (isText && text.startsWith(shown.data)) shown.appendData(text.slice(shown.length));
  else if (isText && shown.data.startsWith(text)) shown.deleteData(text.length, shown.length - text.length);
  else node.textContent = text;
}

// Paragraphs, and code between lines of three backquotes, from a node on that showed a block before. A paragraph of
// many lines goes on in a next one.
function blocksOf(text, node) {
  const blocks = [];
  let start = node?.start ?? 0;
  let open = node?.className === 'text on' ? { kind: 'text', start: -Infinity } : null;
  for (const line of text.slice(start).split('\n')) {
    const fence = /^\s*```([^`]*)$/.exec(line);
    const isCode = open?.kind === 'code';
    if (fence ? isCode : !isCode && !line.trim()) {
      open = null;
    } else if (fence) {
      open = { kind: 'code', start, lines: [], language: fence[1].trim() };
      blocks.push(open);
    } else if (!open || (!isCode && start - open.start > PARAGRAPH_LENGTH)) {
      open = { kind: open ? 'text on' : 'text', start, lines: [line] };
      blocks.push(open);
    } else {
      open.lines.push(line);
    }
    start += line.length + 1;
  }
  return blocks.map(({ lines, ...block }) => ({ ...block, text: lines.join('\n').trimEnd() }));
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, i) => {
    if (i % 2 === 0) return part;
    return part[0] === '`' ? element('code', part.slice(1, -1)) : element('strong', part.slice(2, -2));
  });
}

// ---------------------------------------------------------------- settings, and what outlasts a visit

function loadSettings() {
  let kept = null;
  try {
    kept = JSON.parse(recall('localStorage', 'minnow.settings'));
  } catch {} // nothing was kept, or something that is none of ours
  for (const field of fields) field.value = typeof kept?.[field.name] === 'string' ? kept[field.name] : '';
  countSettings();
}

function saveSettings() {
  const given = fields.filter((field) => field.value).map((field) => [field.name, field.value]);
  keep('localStorage', 'minnow.settings', JSON.stringify(Object.fromEntries(given)));
  countSettings();
}

function countSettings() {
  const num = fields.filter((field) => field.value.trim()).length;
  byId('settings-button').textContent = num ? `Settings (${num})` : 'Settings';
}

function openSettings(isOpen) {
  settings.hidden = !isOpen;
  byId('settings-button').ariaExpanded = String(isOpen);
  (isOpen ? fields[0] : byId('settings-button')).focus();
}

// ---------------------------------------------------------------- what the reader does

function fitQuestion() {
  question.style.height = 'auto';
  question.style.height = `${question.scrollHeight + question.offsetHeight - question.clientHeight}px`;
}

question.addEventListener('input', fitQuestion);
question.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (streaming) streaming.abort();
  else send();
  question.focus();
});
byId('new-chat').addEventListener('click', startAnew);
byId('settings-button').addEventListener('click', () => openSettings(settings.hidden));
byId('close-settings').addEventListener('click', () => openSettings(false));
byId('reset').addEventListener('click', () => {
  for (const field of fields) field.value = '';
  for (const field of fields) field.removeAttribute('aria-invalid');
  saveSettings();
  fields[0].focus();
});
settings.addEventListener('input', (event) => {
  event.target.removeAttribute('aria-invalid');
  saveSettings();
});
settings.addEventListener('submit', (event) => event.preventDefault());
byId('key-cancel').addEventListener('click', () => byId('key-dialog').close());
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || byId('key-dialog').open) return;
  if (settings.contains(document.activeElement)) openSettings(false);
  else streaming?.abort();
});
scroller.addEventListener('scroll', () => {
  byId('to-end').hidden = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 200;
});
byId('to-end').addEventListener('click', () => (scroller.scrollTop = scroller.scrollHeight));

loadSettings();
watch();
