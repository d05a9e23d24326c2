// Sends the same requests to two limits and shows what the server answered. No limit is computed here: the level
// between two requests is asked for, too. Times are those of this machine, which is the server's.

const SAMPLE = 200; // ms between two looks at a level that changes
const HEIGHT = { allowed: 18, full: 42, empty: 138, denied: 158, text: 186 }; // y on the time line, in px
const FUTURE = 0.15; // the share of the time line that is right of now

const ABOUT = {
    'token bucket': 'Tokens flow in steadily, up to the capacity.',
    'fixed window': 'The rate arrives when the window turns. Unused tokens roll over, up to the capacity.',
    'sliding window': 'The previous window counts by the share that the sliding one still overlaps.',
    'sliding log': 'At most the rate in any period, exactly: each token comes back a period after it was taken.',
};

const form = document.getElementById('choices');
const begun = Date.now();
let pausedAt = 0; // 0: it moves
const now = () => pausedAt || Date.now();

// For this tab and this load only, so that visitors don't disturb each other.
const key = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, '0')).join('');

const svg = (parent, tag, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return parent.appendChild(element);
};
const literal = (value) => `'${(typeof value === 'string' ? value : oneLine(value)).replaceAll("'", "''")}'`;
const oneLine = (object) => JSON.stringify(object, null, 1).replace(/\n\s*/g, ' ').replace(/^{ | }$/g, (brace) => brace.trim());
const short = (tokens) => String(Math.floor(tokens * 100) / 100); // rounded down, as in headers

class Panel {
    constructor(id, kind) {
        this.id = id;
        this.root = document.getElementById('panel').content.cloneNode(true).firstElementChild;
        document.querySelector('.panels').append(this.root);
        this.$ = (selector) => this.root.querySelector(selector);
        this.root.id = id;
        this.root.setAttribute('aria-label', `Limit ${id.toUpperCase()}`);
        this.$('.id').textContent = id.toUpperCase();
        this.inputs = [...this.root.querySelectorAll('[name]')];
        this.$('[name=kind]').value = kind;
        for (const input of this.inputs) input.name = `${id}-${input.name}`;
        this.$('.error').id = `${id}-error`;
        this.changes = 0; // how often a call changed the level
        this.forget();
    }

    // Forgets what was shown, not what the limit holds.
    forget() {
        this.counts = { allowed: 0, denied: 0 };
        this.failed = false; // whether the last call was an error
        this.dots = [];
        this.samples = []; // levels: {at, tokens}
        this.$('.dots').replaceChildren();
        this.count();
    }

    // Reads the choices, and asks what they mean.
    async choose() {
        const value = Object.fromEntries(this.inputs.map((input) => [input.name.slice(2), input.value]));
        const capacity = this.$(`[name=${this.id}-capacity]`);
        capacity.disabled = value.kind.startsWith('sliding');
        capacity.parentElement.hidden = capacity.disabled;
        if (capacity.disabled || value.capacity === '') delete value.capacity;
        this.query = new URLSearchParams({ name: this.id, key, ...value });
        this.kind = value.kind;
        this.period = Number(value.period) * 1000;
        this.resetAt = undefined;
        this.since = now(); // windows before are those of other choices
        this.$('.about').textContent = ABOUT[value.kind];
        await this.check(true);
    }

    // Calls the server. Returns its answer, or nothing if it was an error, which is shown. An answer that comes
    // after the choices have changed is stale.
    async call(method, path) {
        const { query } = this;
        const at = Date.now();
        let answer;
        try {
            const response = await fetch(`${path}?${query}`, { method, cache: 'no-store', signal: AbortSignal.timeout(5000) });
            answer = { method, path, at, response, body: await response.json() };
        } catch {
            answer = { body: { error: { message: 'The playground does not answer. Is it still running?' } } };
        }
        const failed = 'error' in answer.body;
        if (query !== this.query) return failed ? undefined : { ...answer, stale: true };
        this.failed = failed;
        this.fail(answer.body.error);
        return failed ? this.show(answer) : answer;
    }

    async hit(at) {
        this.changes += 1;
        const answer = await this.call('POST', 'hit');
        if (!answer) return;
        const { result } = answer.body;
        const outcome = result.ok ? 'allowed' : 'denied';
        this.counts[outcome] += 1;
        const element = svg(this.$('.dots'), 'use', { href: `#${outcome}`, y: HEIGHT[outcome] });
        this.dots.push({ at, element });
        this.place(this.dots.at(-1));
        this.count();
        if (answer.stale) return;
        this.show(answer);
        this.sample(answer, result.ok ? Math.min(result.remaining + 1, result.capacity) : result.remaining);
    }

    // Looks at the level, and shows the call only when asked to.
    async check(show) {
        const { changes } = this;
        const answer = await this.call('GET', 'check');
        if (!answer || answer.stale) return;
        if (show) this.show(answer);
        if (changes === this.changes) this.sample(answer, answer.body.result.remaining); // otherwise it saw what was before
    }

    async reset() {
        const answer = await this.call('POST', 'reset');
        if (!answer) return;
        this.changes += 1;
        this.forget();
        this.show(answer);
        await this.check(false);
    }

    // Whether the level changes without a request.
    get moves() {
        const last = this.samples.at(-1);
        return !this.failed && last && last.tokens < this.capacity;
    }

    // Adds an answer to the level, which was BEFORE when the call came.
    sample({ at, body: { result } }, before) {
        const resetAt = Date.parse(result.reset_at);
        // Also where the call came before the turn and was answered after it.
        if (this.kind === 'fixed window' && resetAt > this.resetAt + this.period / 2) {
            this.step(this.resetAt, this.samples.at(-1)?.tokens ?? before);
            this.step(this.resetAt, before); // all at once
        }
        this.capacity = result.capacity;
        this.resetAt = resetAt;
        this.step(at, before);
        this.step(at, result.remaining);
        this.count();
        this.draw();
    }

    // Adds a point of the level, in the order of time: answers may overtake each other.
    step(at, tokens) {
        this.samples.push({ at: Math.max(at, this.samples.at(-1)?.at ?? 0), tokens });
    }

    count() {
        this.$('.allowed b').textContent = this.counts.allowed;
        this.$('.denied b').textContent = this.counts.denied;
        const last = this.samples.at(-1);
        this.$('.held b').textContent = last ? `${short(last.tokens)} of ${short(this.capacity)}` : '–';
    }

    // Shows a call: its SQL with the parameters, and the answer.
    show({ method, path, response, body }) {
        const parameters = (body.parameters ?? []).map((value, n) => `\n-- $${n + 1} = ${literal(value)}`);
        this.$('.sql').textContent = body.sql ? body.sql + parameters.join('') : '';
        const answer = this.$('.answer');
        answer.textContent = response ? `${method} /${path}: ${response.status} ${response.statusText}` : '';
        answer.className = `answer ${response?.status === 429 ? 'denied' : response?.ok ? 'allowed' : ''}`;
        const headers = [...(response?.headers ?? [])].filter(([name]) => /^(ratelimit|retry-after)/.test(name));
        this.$('.headers').textContent = headers.map(([name, value]) => `${name}: ${value}`).join('\n');
        this.$('.result').textContent = JSON.stringify(body.error ?? body.result, null, 2);
    }

    // Shows an error of the server, or none, and marks the field that it names.
    fail(error) {
        const box = this.$('.error');
        box.hidden = !error;
        const lines = error ? [error.message, error.detail, error.hint].filter(Boolean) : [];
        const [, field] = /"(\w+)" is /.exec(error?.message) ?? [];
        for (const input of this.inputs) {
            const invalid = input.name === `${this.id}-${field}`;
            for (const [name, value] of [['aria-invalid', 'true'], ['aria-errormessage', box.id]]) {
                if (invalid) input.setAttribute(name, value);
                else input.removeAttribute(name);
            }
        }
        box.replaceChildren(...lines.map((line) => Object.assign(document.createElement('p'), { textContent: line })));
    }

    // Sizes the time line to SPAN ms before now, and places all that is on it.
    layout(span) {
        const width = this.$('.timeline').clientWidth;
        this.span = span;
        this.nowX = width * (1 - FUTURE);
        this.scale = this.nowX / span; // px a ms
        this.$('.grid').setAttribute('d', `M0 ${HEIGHT.full}.5H${width}M0 ${HEIGHT.empty}.5H${width}`);
        const line = { x1: this.nowX, x2: this.nowX, y1: 6, y2: HEIGHT.text - 16 };
        for (const [name, value] of Object.entries(line)) this.$('.now').setAttribute(name, value);
        const texts = this.$('.texts');
        texts.replaceChildren();
        const step = [1, 2, 5, 10, 20, 30, 60].find((seconds) => seconds * 1000 * this.scale > 60) ?? 60;
        for (let ago = 0; ago * 1000 * this.scale < this.nowX - 20; ago += step) {
            const text = svg(texts, 'text', { x: this.nowX - ago * 1000 * this.scale, y: HEIGHT.text, 'text-anchor': 'middle' });
            text.textContent = ago ? `−${ago} s` : 'now';
        }
        this.full = svg(texts, 'text', { x: width - 6, y: HEIGHT.full - 4, 'text-anchor': 'end' });
        svg(texts, 'text', { x: width - 6, y: HEIGHT.empty - 4, 'text-anchor': 'end' }).textContent = '0';
        this.dots.forEach((dot) => this.place(dot));
        this.draw();
    }

    x(at) { return (at - begun) * this.scale; }
    y(tokens) { return HEIGHT.empty - (tokens / (this.capacity || 1)) * (HEIGHT.empty - HEIGHT.full); }
    place({ at, element }) { element.setAttribute('x', this.x(at).toFixed(1)); }

    // Draws the level, and drops what has left the time line.
    draw() {
        const oldest = now() - this.span;
        while (this.dots[0]?.at < oldest) this.dots.shift().element.remove();
        while (this.samples[1]?.at < oldest) this.samples.shift();
        const points = this.samples.map(({ at, tokens }) => `${this.x(at).toFixed(1)},${this.y(tokens).toFixed(1)}`);
        this.$('polyline').setAttribute('points', points.join(' '));
        if (this.full && this.capacity !== undefined) this.full.textContent = short(this.capacity);
        this.$('.timeline').setAttribute('aria-label', `Time line of limit ${this.id.toUpperCase()}: ` +
            `${this.counts.allowed} allowed, ${this.counts.denied} denied`);
    }

    // Moves the time line to the present.
    frame() {
        const at = now();
        this.$('.moving').setAttribute('transform', `translate(${(this.nowX - this.x(at)).toFixed(1)})`);
        // The level is drawn to the last look; from there to now it goes on.
        const last = this.samples.at(-1);
        const rest = this.$('line.level');
        if (last) {
            const line = { x1: this.nowX - (at - last.at) * this.scale, x2: this.nowX, y1: this.y(last.tokens), y2: this.y(last.tokens) };
            for (const [name, value] of Object.entries(line)) rest.setAttribute(name, value.toFixed(1));
        }
        rest.style.visibility = last && !this.failed ? '' : 'hidden';

        let turns = '';
        if (this.kind.endsWith('window') && !this.failed && this.resetAt && this.period * this.scale > 4) {
            const begin = Math.max(at - this.span, this.since);
            const end = at + (this.span * FUTURE) / (1 - FUTURE);
            for (let turn = this.resetAt + Math.ceil((begin - this.resetAt) / this.period) * this.period; turn < end; turn += this.period) {
                turns += `M${this.x(turn).toFixed(1)} 6V${HEIGHT.text - 16}`;
            }
        }
        this.$('.moving .turns').setAttribute('d', turns);
    }
}

const panels = [new Panel('a', 'token bucket'), new Panel('b', 'fixed window')];

// Requests

const hit = () => {
    pause(false);
    const at = Date.now();
    for (const panel of panels) panel.hit(at);
};

const stream = document.getElementById('stream');
const isPressed = (button) => button.getAttribute('aria-pressed') === 'true';
let next; // the timer of the stream
const schedule = () => {
    clearTimeout(next);
    if (!isPressed(stream) || pausedAt) return;
    const gap = 1000 / Number(form.elements['per-second'].value);
    const wait = form.elements.arrivals.value === 'random' ? -Math.log(1 - Math.random()) * gap : gap;
    next = setTimeout(() => { hit(); schedule(); }, wait);
};

const pause = (wanted) => {
    if (wanted === Boolean(pausedAt)) return;
    pausedAt = wanted ? Date.now() : 0;
    document.getElementById('pause').setAttribute('aria-pressed', wanted);
    schedule();
};

form.addEventListener('submit', (event) => { event.preventDefault(); hit(); });
stream.addEventListener('click', () => {
    stream.setAttribute('aria-pressed', !isPressed(stream));
    // A screen reader would never finish reading a stream.
    for (const panel of panels) panel.$('.answer').setAttribute('aria-live', isPressed(stream) ? 'off' : 'polite');
    pause(false);
    schedule();
});
document.getElementById('pause').addEventListener('click', () => pause(!pausedAt));
document.getElementById('reset').addEventListener('click', () => { for (const panel of panels) panel.reset(); });

// Choices

const rate = () => { document.getElementById('per-second-shown').textContent = form.elements['per-second'].value; };
const layout = () => {
    // What gets the focus is not scrolled to below the bar, which is higher where the page is narrow.
    document.documentElement.style.scrollPaddingTop = `${document.querySelector('.requests').offsetHeight + 8}px`;
    // Twice the longer period, but neither a blur nor a standstill.
    const longest = Math.max(...panels.map(({ period }) => period || 0));
    for (const panel of panels) panel.layout(Math.min(Math.max(2 * longest, 10_000), 120_000));
};

const shared = new URLSearchParams(location.search);
for (const input of form.elements) {
    const value = shared.get(input.name);
    const known = !input.options || [...input.options].some((option) => option.value === value);
    if (value !== null && known) input.value = value;
}
form.addEventListener('input', ({ target }) => { if (target.name === 'per-second') { rate(); schedule(); } });
form.addEventListener('change', ({ target }) => {
    history.replaceState(null, '', `?${new URLSearchParams(new FormData(form))}`);
    panels.find((panel) => panel.inputs.includes(target))?.choose();
    layout();
});
addEventListener('resize', layout);
rate();
for (const panel of panels) panel.choose();
layout();

// Time

const frame = () => {
    for (const panel of panels) panel.frame();
    // Two pictures a second where less motion is wanted.
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) setTimeout(frame, 500);
    else requestAnimationFrame(frame);
};
frame();

for (const panel of panels) {
    const look = async () => {
        if (panel.moves && !pausedAt && !document.hidden) await panel.check(false);
        setTimeout(look, SAMPLE);
    };
    look();
}
