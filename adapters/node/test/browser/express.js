// docs/browser.md shows the first route.
import express from 'express';

import { limiter, send, sessionOf } from './application.js';

export const app = express.Router();
app.use((request, response, next) => {
    request.session = sessionOf(request.headers.cookie);
    if (request.session) next();
    else response.sendStatus(401);
});

app.get('/limits/sendMessage', async (request, response) => {
    const value = await limiter.getValue('sendMessage', { key: request.session.user });
    response.set('Cache-Control', 'no-store').json(value);
});

app.post('/messages', async (request, response) => {
    response.sendStatus((await send(request.session.user)) ? 201 : 429);
});
