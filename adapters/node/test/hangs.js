// A database behind a socket that answers until it `hangs`.
import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';

/** Its proxy, and the folder of its socket: the host of a connection. */
export async function hangs(context) {
    const folder = await mkdtemp(`${tmpdir()}/hangs.`);
    const sockets = [];
    const proxy = net.createServer((client) => {
        const server = net.connect(`${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}`);
        for (const socket of [client, server]) socket.on('error', () => {});
        client.on('data', (data) => proxy.hangs || server.write(data)).on('close', () => server.destroy());
        server
            .on('data', (data) => proxy.hangs || client.write(data))
            .on('close', () => proxy.hangs || client.destroy());
        sockets.push(client, server);
    });
    await new Promise((resolve) => proxy.listen(`${folder}/.s.PGSQL.${process.env.PGPORT}`, resolve));
    context.after(async () => {
        for (const socket of sockets) socket.destroy();
        proxy.close();
        await rm(folder, { recursive: true });
    });
    return { proxy, host: folder };
}
