// No language model: it repeats a sentence, a word at a time, and reports what it has used, as those that stream do.
import { setTimeout as sleep } from 'node:timers/promises';

const WORDS = 'I am no language model. I repeat this, a word at a time, so that you see what it costs.'.split(' ');

/** The words of an answer, each with the tokens used so far: those of the question, and one for each word. */
export async function* model(question: string): AsyncGenerator<{ text: string; usage: number }> {
    const asked = Math.ceil(question.length / 4);
    yield { text: `“${question}”`, usage: asked };
    for (let n = 0; n < 60; n++) {
        await sleep(25);
        yield { text: ` ${WORDS[n % WORDS.length]}`, usage: asked + n + 1 };
    }
}
