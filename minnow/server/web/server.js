// what the page asks the server: requests and their errors, the key, and the numbers of the server

export let model = null; // what the server calls it; null until it has said so
let key = recall('sessionStorage', 'minnow.key');
export let isAlone = false; // no model is served
let keyAsked = null; // a promise while the dialog is open
let counter = null; // tokens generated so far, and when that was read
let rounds = { drafts: 0, kept: 0 }; // of verification so far, and drafts that they kept

export class Failure extends Error {
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    this.status = status; // 0: no answer at all
    this.param = param;
    this.code = code;
  }
}

// A successful response, or a Failure in the server's own words. Asks for the key where one is wanted, unless `isQuiet`.
export async function ask(path, { body, signal, isQuiet = false } = {}) {
  for (;;) {
    const keyUsed = key;
    const headers = {};
    if (body) headers['Content-Type'] = 'application/json';
    if (key) headers.Authorization = `Bearer ${toBytes(key)}`;
    const response = await fetch(path, { method: body ? 'POST' : 'GET', headers, body, signal }).catch((error) => {
      throw signal?.aborted ? error : new Failure('the server does not answer; see whether it still runs');
    });
    if (response.ok) return response;
    const failure = await failureOf(response);
    if (response.status !== 401 || isQuiet) throw failure;
    if (key === keyUsed) await askForKey(failure); // else another request has asked meanwhile
  }
}

async function failureOf(response) {
  const text = await response.text().catch(() => '');
  try {
    const { message, param, code } = JSON.parse(text).error;
    return new Failure(message, { status: response.status, param, code });
  } catch {
    return new Failure(`the server answered with status ${response.status}`, { status: response.status });
  }
}

// The events of a stream, parsed. One that ends without its end mark has broken off.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let isWhole = false;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split('\n\n');
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, '');
        if (data === '[DONE]') isWhole = true;
        else yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // where the page gives up, the server stops
  }
  if (!isWhole) throw new Failure('the stream broke off before its end');
}

function askForKey(failure) {
  keyAsked ??= new Promise((resolve, reject) => {
    const dialog = byId('key-dialog');
    byId('key-words').textContent = key ? failure.message : 'Whoever runs the server knows it. It stays in this tab.';
    dialog.returnValue = '';
    dialog.onclose = () => {
      keyAsked = null;
      if (dialog.returnValue !== 'ok') return reject(failure);
      key = byId('key').value;
      byId('key').value = '';
      keep('sessionStorage', 'minnow.key', key);
      resolve();
    };
    dialog.showModal();
  });
  return keyAsked;
}

// Headers take characters up to U+00FF only, one for each byte.
function toBytes(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('');
}

// ---------------------------------------------------------------- the server now

// Once a second while somebody looks; less often while it fails.
export async function watch() {
  for (let waitMs = 0; !isAlone; await new Promise((resolve) => setTimeout(resolve, waitMs))) {
    while (document.hidden) {
      counter = null;
      await new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true }));
    }
    const isWell = (await introduce(waitMs > 0)) && (await measure());
    waitMs = isWell ? 1000 : Math.min(waitMs + 1000, 3000);
  }
}

// Says which model is served, once; while it loads, what the server says about that.
async function introduce(isQuiet) {
  if (model) return true;
  try {
    const { data } = await (await ask('/v1/models', { isQuiet })).json();
    if (!data.length) return beAlone();
    const version = await ask('/version', { isQuiet }).then((response) => response.json(), () => ({}));
    model = data[0].id;
    byId('model').textContent = model;
    byId('context').textContent = `${counted(data[0].max_model_len)} of context`;
    byId('version').textContent = version.version ?? '';
    document.title = `${model} - Minnow`;
    notice('');
  } catch (error) {
    notice(error.message);
  }
  return model !== null;
}

// Without a model there is nobody to talk to, only the planner.
function beAlone() {
  isAlone = true;
  byId('to-chat').hidden = true;
  if (!asksForPlan()) location.replace('#plan');
  notice('');
  return false;
}

// Whether the address is one of the planner.
export const asksForPlan = () => /^#plan(\?|$)/.test(location.hash);

// What is served now, where it is not what the page believes. Whether the server has said so.
export function learnModel() {
  model = null;
  return introduce(true);
}

async function measure() {
  try {
    show(await (await ask('/metrics', { isQuiet: true })).text());
  } catch (error) {
    counter = null;
    byId('live').classList.add('empty');
    byId('no-numbers').textContent = `No numbers: ${error.message}`;
    if (error.status === 0) {
      model = null; // another one may come back
      notice(error.message);
    }
    return false;
  }
  return true;
}

function show(metrics) {
  const values = (name) => {
    const lines = metrics.matchAll(new RegExp(`^vllm:${name}(?:\\{.*\\})? (\\S+)`, 'gm'));
    return Array.from(lines, ([, value]) => Number(value));
  };
  const sum = (name) => values(name).reduce((total, value) => total + value, 0);
  const used = values('kv_cache_usage_perc').reduce((most, value) => Math.max(most, value), 0);
  const now = { tokens: sum('generation_tokens_total'), ms: performance.now() };
  const speed = counter ? (now.tokens - counter.tokens) / ((now.ms - counter.ms) / 1000) : 0;
  counter = now;
  byId('live').classList.remove('empty');
  byId('no-numbers').textContent = '';
  byId('cache-bar').value = used;
  byId('cache').textContent = `${percent(used)} %`;
  byId('running').textContent = grouped(sum('num_requests_running'));
  byId('waiting').textContent = grouped(sum('num_requests_waiting'));
  byId('speed').textContent = rate(Math.max(speed, 0)); // below 0 where the server began anew
  showDrafts({ drafts: sum('spec_decode_num_drafts_total'), kept: sum('spec_decode_num_accepted_tokens_total') });
}

// The acceptance length since the last look; while nothing is drafted, what it was.
function showDrafts(now) {
  const gained = now.drafts > rounds.drafts ? { drafts: now.drafts - rounds.drafts, kept: now.kept - rounds.kept } : null;
  rounds = now;
  byId('drafts').hidden = now.drafts === 0;
  if (gained) byId('acceptance').textContent = grouped(1 + gained.kept / gained.drafts, 2);
}

function notice(text) {
  byId('notice').textContent = text;
  byId('notice').hidden = !text;
}

// ---------------------------------------------------------------- what all files need

export const byId = (id) => document.getElementById(id);
const percent = (share) => (share * 100).toFixed(share === 0 || share >= 0.1 ? 0 : share >= 0.001 ? 1 : 2);
export function grouped(value, digits = 0) {
  return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
export const rate = (value) => grouped(value, 0 < value && value < 100 ? 1 : 0);
export const counted = (tokens) => `${grouped(tokens)} token${tokens === 1 ? '' : 's'}`;
export const duration = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

// Storage may be forbidden; then nothing outlasts the page.
export function recall(storage, name) {
  try {
    return window[storage].getItem(name) ?? '';
  } catch {
    return '';
  }
}

export function keep(storage, name, text) {
  try {
    window[storage].setItem(name, text);
  } catch {} // as above
}

export function element(tag, text, className = '') {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

export async function copy(text, button) {
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
