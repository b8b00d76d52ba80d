// the page: a conversation, and the settings of its answers
import { Failure, ask, byId, counted, duration, eventsOf, keep, model, rate, recall, watch } from './server.js';

const scroller = byId('scroller');
const chat = byId('chat');
const question = byId('question');
const settings = byId('settings');
const fields = [...settings.querySelectorAll('[name]')];
const TEXT_FIELDS = ['system', 'stop']; // all others are numbers

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
    Object.assign(this, { answer: '', reasoning: '', error: '', end: '', isRunning: false, isDue: false });
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
    requestAnimationFrame(() => {
      if (this.isDue) this.paint();
    });
  }

  paint() {
    this.isDue = false;
    const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 8;
    this.view.classList.toggle('running', this.isRunning);
    this.part('.reasoning').hidden = !this.reasoning;
    this.part('.reasoning div').textContent = this.reasoning;
    render(this.part('.answer'), this.answer);
    this.part('.error').hidden = !this.error;
    this.part('.error').textContent = this.error;
    this.part('.copy').hidden = this.isRunning || !this.answer;
    this.part('.again').hidden = this.isRunning;
    this.part('.again').textContent = this.error ? 'Try again' : 'Regenerate';
    this.part('.numbers').textContent = this.numbers().map((words) => words.replaceAll(' ', '\u00a0')).join(' \u00b7 ');
    if (isAtEnd) scroller.scrollTop = scroller.scrollHeight; // a reader who scrolled up stays where they are
  }

  numbers() {
    if (!this.firstAt) return this.isRunning ? ['waiting for the first token'] : [this.end].filter(Boolean);
    const seconds = (this.lastAt - this.firstAt) / 1000;
    const found = [`first token ${duration(this.firstAt - this.sentAt)}`];
    if (this.usage) {
      const { completion_tokens: tokens, prompt_tokens: prompt, prompt_tokens_details: details } = this.usage;
      if (seconds > 0) found.push(`${rate((tokens - this.firstTokens) / seconds)} tokens/s`);
      found.push(counted(tokens));
      if (!this.isRunning) found.push(`prompt ${counted(prompt)}, ${details?.cached_tokens ?? 0} cached`);
    }
    return this.end ? [...found, this.end] : found;
  }
}

async function answer(exchange) {
  const controller = new AbortController();
  streaming = controller;
  exchange.clear();
  exchange.isRunning = true;
  exchange.paint();
  scroller.scrollTop = scroller.scrollHeight;
  showStreaming();
  try {
    const response = await ask('/v1/chat/completions', { body: bodyFor(exchange), signal: controller.signal });
    for await (const event of eventsOf(response)) exchange.take(event);
  } catch (error) {
    if (controller.signal.aborted) {
      exchange.end = 'stopped';
    } else {
      exchange.error = error instanceof Failure ? error.message : `the stream broke off: ${error.message}`;
      fields.find((field) => field.name === error.param)?.setAttribute('aria-invalid', 'true');
    }
  }
  exchange.isRunning = false;
  exchange.paint();
  if (streaming === controller) streaming = null;
  showStreaming();
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

function element(tag, text, className = '') {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

// Shows a text as paragraphs and code; only what has changed since the last time is touched.
function render(container, text) {
  const blocks = blocksOf(text);
  blocks.forEach(({ kind, text, language }, i) => {
    let node = container.children[i];
    if (node?.className !== kind) {
      node?.remove();
      node = kind === 'code' ? newCode(language) : element('p', '', kind);
      container.insertBefore(node, container.children[i] ?? null);
    }
    if (node.source === text) return;
    node.source = text;
    if (kind === 'code') node.querySelector('code').textContent = text;
    else node.replaceChildren(...inline(text));
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}

function newCode(language) {
  const node = element('div', '', 'code');
  const button = element('button', 'Copy');
  button.type = 'button';
  button.onclick = () => copy(node.source, button);
  const pre = element('pre', '');
  pre.append(element('code', ''));
  node.append(element('span', language), button, pre);
  return node;
}

// Paragraphs, and code between lines of three backquotes; the last one may still be growing.
function blocksOf(text) {
  const blocks = [];
  let open = null;
  for (const line of text.split('\n')) {
    const fence = /^\s*```([^`]*)$/.exec(line);
    const isCode = open?.kind === 'code';
    if (fence ? isCode : !isCode && !line.trim()) {
      open = null;
    } else if (fence || !open) {
      open = fence ? { kind: 'code', lines: [], language: fence[1].trim() } : { kind: 'text', lines: [line] };
      blocks.push(open);
    } else {
      open.lines.push(line);
    }
  }
  return blocks.map(({ lines, ...block }) => ({ ...block, text: lines.join('\n').trimEnd() }));
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, i) => {
    if (i % 2 === 0) return part;
    return part[0] === '`' ? element('code', part.slice(1, -1)) : element('strong', part.slice(2, -2));
  });
}

async function copy(text, button) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else { // browsers have no clipboard on plain http, but for this machine's own
    const area = element('textarea', text);
    button.after(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
}

// ---------------------------------------------------------------- settings, and what outlasts a visit

function loadSettings() {
  const kept = JSON.parse(recall('localStorage', 'minnow.settings') || '{}');
  for (const field of fields) field.value = kept[field.name] ?? '';
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
