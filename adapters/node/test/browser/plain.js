// A page without a framework and without a bundler. docs/browser.md shows parts of it.
import { watchRateLimit } from 'postgres-rate-limit/browser';
import { getValue } from './value.js';

const button = document.querySelector('button');
const send = () => fetch('/messages', { method: 'POST' });

const watch = watchRateLimit(getValue);
watch.subscribe(() => {
    const { status } = watch.getSnapshot();
    button.disabled = !status?.ok;
    button.title = status?.retryAt ? `again at ${new Date(status.retryAt).toLocaleTimeString()}` : '';
});
button.onclick = () => send().finally(watch.refresh);
