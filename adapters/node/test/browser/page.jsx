// A page with React. docs/browser.md shows its button.
import { createRoot } from 'react-dom/client';
import { useCountdown, useRateLimit } from 'postgres-rate-limit/react';
import { getValue } from './value.js';

function SendButton({ send }) {
    const { status, refresh } = useRateLimit(getValue);
    const seconds = useCountdown(status?.retryAt);
    return (
        <button disabled={!status?.ok} onClick={() => send().finally(refresh)}>
            {seconds > 0 ? `Send in ${seconds} s` : 'Send'}
        </button>
    );
}

const send = () => fetch('/messages', { method: 'POST' });
createRoot(document.querySelector('main')).render(<SendButton send={send} />);
