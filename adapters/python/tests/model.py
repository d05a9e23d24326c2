"""A server that speaks the protocols of OpenAI, chat completions and responses, and reports a usage of 20 and 10
tokens. The name of the model says what it does: answer, refuse (400), fail (504), break (ends in the middle), slow
(waits in the middle until it is released), silent (reports no usage), total (reports the sum alone), azure (its first chunk has
no choices)."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
UNUSUAL = {"silent": None, "total": {"total_tokens": 30}}
RELEASED = threading.Event()


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        status = {"refuse": 400, "fail": 504}.get(asked["model"], 200)
        if asked["model"] == "slow" and not asked.get("stream"):
            RELEASED.wait(60)
        try:
            if status != 200:
                self.answer(status, {"error": {"message": asked["model"]}})
            elif self.path.endswith("/responses"):
                self.respond(asked)
            elif asked.get("stream"):
                self.stream(asked)
            else:
                message = {"role": "assistant", "content": "Paris."}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self.answer(200, self.object(asked, "chat.completion", [choice], UNUSUAL.get(asked["model"], USAGE)))
        except OSError:
            pass  # the client has gone, or is left

    def object(self, asked, kind, choices, usage):
        return {"id": "1", "object": kind, "created": 1, "model": asked["model"], "choices": choices, "usage": usage}

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def respond(self, asked):
        text = {"type": "output_text", "text": "Paris.", "annotations": []}
        output = [{"id": "1", "type": "message", "status": "completed", "role": "assistant", "content": [text]}]
        response = {"id": "1", "object": "response", "created_at": 1, "model": asked["model"], "output": output}
        usage = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
        usage = UNUSUAL.get(asked["model"], usage)
        if not asked.get("stream"):
            self.answer(200, {**response, "status": "completed", "usage": usage})
            return
        self.begin()
        self.chunk({"type": "response.created", "response": {**response, "status": "in_progress", "output": []}})
        for word in self.words(asked):
            self.chunk({"type": "response.output_text.delta", "delta": word})
        self.chunk({"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}})
        self.write(b"")

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def words(self, asked):
        for n, word in enumerate(("Par", "is", ".")):
            if n == 2 and asked["model"] == "break":
                self.close_connection = True
                raise ConnectionAbortedError
            if n == 2 and asked["model"] == "slow":
                RELEASED.wait(60)
            yield word

    def stream(self, asked):
        self.begin()
        if asked["model"] == "azure":
            self.chunk(self.object(asked, "chat.completion.chunk", [], None))
        for word in self.words(asked):
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": "stop" if word == "." else None}
            self.chunk(self.object(asked, "chat.completion.chunk", [delta], None))
        if (asked.get("stream_options") or {}).get("include_usage") and asked["model"] != "silent":
            self.chunk(self.object(asked, "chat.completion.chunk", [], UNUSUAL.get(asked["model"], USAGE)))
        self.write(b"data: [DONE]\n\n")
        self.write(b"")

    def chunk(self, body):
        self.write(f"data: {json.dumps(body)}\n\n".encode())

    def write(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@contextmanager
def model():
    """The server; its address is .url, and what it was asked is .asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a client that has gone
    server.request_queue_size = 128
    server.asked, server.url = [], f"http://127.0.0.1:{server.server_port}/v1"
    RELEASED.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        RELEASED.set()
        server.shutdown()
        server.server_close()
