// The page. A comment "Limit:" precedes what it takes from the package.
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { useCountdown, useRateLimit, type WatchOptions } from 'postgres-rate-limit/react';

async function call(path: string, body?: object) {
    const response = await fetch(path, body && { method: 'POST', body: JSON.stringify(body) });
    if (!response.ok) throw new Error(await response.text());
    return response;
}
const get = async (path: string) => (await call(path)).json();

type Limited = WatchOptions & { limit: string; label: string; press: () => Promise<void> };

// Limit: disabled while it denies, with a countdown, and then enabled again.
function LimitedButton({ limit, label, press, ...options }: Limited) {
    const { status, refresh } = useRateLimit(() => get(limit), options);
    const seconds = useCountdown(status?.retryAt);
    const [busy, setBusy] = useState(false);
    const click = async () => {
        setBusy(true);
        await press();
        await refresh();
        setBusy(false);
    };
    return (
        <button disabled={!status?.ok || busy} onClick={click}>
            {seconds > 0 ? `${label} in ${seconds} s` : label}
        </button>
    );
}

function Input({ label, value, set }: { label: string; value: string; set: (value: string) => void }) {
    return <input aria-label={label} placeholder={label} value={value} onChange={(e) => set(e.target.value)} />;
}

function SignUp({ done }: { done: (name: string) => void }) {
    const [name, setName] = useState('');
    const [error, setError] = useState('');
    const signUp = () => call('/users', { name }).then(() => done(name), (error) => setError(error.message));
    return (
        <form onSubmit={(event) => event.preventDefault()}>
            <Input label="Your name" value={name} set={setName} />
            <LimitedButton label="Sign up" press={signUp} limit="/limits/signUp" shared />
            <p role="alert">{error}</p>
        </form>
    );
}

type Message = { id: number; author: string; body: string };

function Chat() {
    const [messages, setMessages] = useState<Message[]>([]);
    const [answer, setAnswer] = useState('');
    const [text, setText] = useState('');
    const [error, setError] = useState('');
    const show = () => get('/my/messages').then(setMessages, (error) => setError(error.message));
    useEffect(() => {
        const timer = setInterval(show, 1000);
        return () => clearInterval(timer);
    }, []);

    const send = () => call('/my/messages', { body: text });
    const ask = async () => {
        const { body } = await call('/my/questions', { question: text });
        const parts = body!.pipeThrough(new TextDecoderStream()) as unknown as AsyncIterable<string>;
        for await (const part of parts) setAnswer((answer) => answer + part);
    };
    const press = (work: () => Promise<unknown>) => async () => {
        setError('');
        setText('');
        await work().catch((error) => {
            setError(error.message);
            setText(text);
        });
        await show();
        setAnswer('');
    };
    return (
        <form onSubmit={(event) => event.preventDefault()}>
            <ol>
                {answer && <li><b>the model</b> {answer}</li>}
                {messages.map(({ id, author, body }) => <li key={id}><b>{author}</b> {body}</li>)}
            </ol>
            <Input label="Text" value={text} set={setText} />
            <LimitedButton label="Send" press={press(send)} limit="/my/limits/sendMessage" />
            <LimitedButton label="Ask the model" press={press(ask)} limit="/my/limits/llmTokens" count={40} />
            <p role="alert">{error}</p>
        </form>
    );
}

function Page() {
    const [name, setName] = useState<string | null>();
    useEffect(() => { get('/my/name').then(setName, () => setName(null)) }, []);
    if (name === undefined) return null;
    return name === null ? <SignUp done={setName} /> : <Chat />;
}

createRoot(document.querySelector('main')!).render(<Page />);
