// The page. A comment "Limit:" precedes what it takes from the package.
import { useChat } from '@ai-sdk/react';
import { DefaultChatTransport, type UIMessage } from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { useCountdown, useRateLimit, type WatchOptions } from 'postgres-rate-limit/react';

async function call(path: string, body?: object) {
    const response = await fetch(path, body && { method: 'POST', body: JSON.stringify(body) });
    if (!response.ok) throw new Error((await response.json()).error);
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

// Limit: a question that waits for a slot is sent again, with the same id, until it begins.
const inTurn = (show: (place?: number) => void): typeof fetch => async (path, init) => {
    for (;;) {
        const response = await fetch(path, init);
        const { place, error } = response.ok ? {} : await response.json();
        show(place);
        if (response.ok) return response;
        if (place === undefined) throw new Error(error);
        await new Promise((resolve) => setTimeout(resolve, 1000));
    }
};
const textOf = ({ parts }: UIMessage) => parts.map((part) => (part.type === 'text' ? part.text : '')).join('');

function Chat() {
    const [messages, setMessages] = useState<Message[]>([]);
    const [place, setPlace] = useState<number>();
    const [text, setText] = useState('');
    const [error, setError] = useState('');
    const show = () => get('/my/messages').then(setMessages, (error) => setError(error.message));
    useEffect(() => {
        const timer = setInterval(show, 1000);
        return () => clearInterval(timer);
    }, []);

    const failed = (text: string) => (error: Error) => {
        setError(error.message);
        setText(text);
    };
    const send = async () => {
        setError('');
        setText('');
        await call('/my/messages', { body: text }).catch(failed(text));
        await show();
    };

    const [transport] = useState(
        () =>
            new DefaultChatTransport({
                api: '/my/questions',
                fetch: inTurn(setPlace),
                prepareSendMessagesRequest: ({ messages }) => {
                    const question = messages.at(-1)!;
                    return { body: { id: question.id, question: textOf(question) } };
                },
            }),
    );
    const model = useChat({ transport, generateId: () => crypto.randomUUID() });
    const [question, answer] = model.messages;
    const isAsked = question && model.error && textOf(question) === text; // its answer was lost
    useEffect(() => { if (model.error) failed(textOf(question))(model.error) }, [model.error]);
    const ask = async () => {
        setError('');
        setText('');
        if (!isAsked) model.setMessages([]);
        await (isAsked ? model.regenerate() : model.sendMessage({ text }));
        await show();
    };
    const answers = model.status === 'submitted' || model.status === 'streaming';
    return (
        <form onSubmit={(event) => event.preventDefault()}>
            <ol>
                {answers && !!place && <li>Your question is number {place} in line</li>}
                {answers && answer && <li><b>the model</b> {textOf(answer)}</li>}
                {messages.map(({ id, author, body }) => <li key={id}><b>{author}</b> {body}</li>)}
            </ol>
            <Input label="Text" value={text} set={setText} />
            <LimitedButton label="Send" press={send} limit="/my/limits/sendMessage" />
            {answers ? (
                <button onClick={model.stop}>Stop</button>
            ) : (
                <LimitedButton label="Ask the model" press={ask} limit="/my/limits/llmTokens" count={100} />
            )}
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
