#!/usr/bin/env python3
"""qkv serve against clients that mean no good: what they cannot break, hold up or fill.
Usage: cli_serve_test.py QKV"""

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from text_models import TextModel

QKV = sys.argv.pop(1) if len(sys.argv) > 1 else "qkv"
SANITIZED = "QKV_SANITIZED" in os.environ
LOOK = json.dumps({"text": "a b c"}).encode()


class Server:
    """A server on a port of its own choice; `with` ends it."""

    def __init__(self, *arguments, golden="bert-model"):
        self.model = TextModel(golden)
        self.process = subprocess.Popen(
            [QKV, "serve", "--port", "0", "--model", self.model.folder, "--json", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(self.process.stderr.read())
            text += line
        about = json.loads(text)
        self.url, self.port, self.token = about["url"], about["port"], about["token"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.model.temporary.cleanup()

    def end(self):
        """Seconds until it ended after Ctrl-C, its status, and what it said."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        errors = self.process.communicate(timeout=60)[1]
        return time.monotonic() - begin, self.process.returncode, errors

    def resident(self):
        """Bytes of memory."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) << 10

    def processor_time(self):
        """Seconds of all threads."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            user, system = file.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def connect(self, host="127.0.0.1"):
        client = socket.create_connection((host, self.port), timeout=300 if SANITIZED else 60)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def ask(self, *pieces, host="127.0.0.1"):
        """The status and body of the answer to these bytes; status 0: there was none."""
        with contextlib.closing(self.connect(host)) as client:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    client.sendall(piece)
            return answer(client)


def answer(client):
    data = b""
    with contextlib.suppress(ConnectionResetError, socket.timeout):
        while b"\r\n\r\n" not in data:
            more = client.recv(1 << 16)
            if not more:
                break
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        while length and len(body) < int(length[1]):
            more = client.recv(1 << 16)
            if not more:
                break
            body += more
        if head:
            return int(head.split()[1]), body.decode()
    return 0, ""


def request(method="GET", path="/api/model", body=b"", host="localhost", **headers):
    lines = [f"{method} {path} HTTP/1.1"]
    if host is not None:
        lines.append("Host: " + host)
    if body:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Serve(unittest.TestCase):
    def refused(self, server, status, why, *pieces):
        got, body = server.ask(*pieces)
        self.assertEqual(got, status, body)
        self.assertIn(why, json.loads(body)["error"])

    def test_only_whom_it_should_answer(self):
        with Server() as server:
            for host in ("localhost", f"127.0.0.1:{server.port}", "127.0.0.2", "[::1]:1", "LocalHost:80"):
                self.assertEqual(server.ask(request(host=host))[0], 200, host)
            for host in ("127.evil.com", "127.0.0.1.evil.com", "evil.com:8080", "localhost.evil.com",
                         "127.1:1:1", "0x7f.1", "::1", "[::1", "", "localhost:80:80", "127.0.0.1 evil"):
                self.assertEqual(server.ask(request(host=host))[0], 403, host)
            self.refused(server, 400, "one Host", request(Host="evil.com"))
            self.refused(server, 400, "one Host", request(host=None))
            own = f"http://127.0.0.1:{server.port}"
            at = f"127.0.0.1:{server.port}"
            post = lambda **more: request("POST", "/api/look", LOOK, at, **more)
            self.assertEqual(server.ask(post(Origin=own))[0], 200)
            for origin in ("http://evil.com", "null", "http://127.0.0.1:1", own + ".evil.com",
                           "file://", "http://localhost:" + str(server.port)):
                self.refused(server, 403, "other origins", post(Origin=origin))
            self.refused(server, 400, "one Origin", post(Origin=own) .replace(
                b"Origin", b"Origin: http://evil.com\r\nOrigin", 1))

    def test_every_loopback_address_serves_itself(self):
        with Server("--host", "127.0.0.2") as server:
            self.assertEqual(server.token, "")
            where = f"127.0.0.2:{server.port}"
            self.assertEqual(server.ask(request(host=where), host="127.0.0.2")[0], 200)

    def test_a_token_is_asked_for_before_a_body(self):
        with Server("--host", "0.0.0.0", "--token", "secret") as server:
            head = request("POST", "/api/look", host="x", Transfer_Encoding="chunked")
            self.refused(server, 401, "token", head)  # answered although no body ever comes
            self.refused(server, 401, "token", request(host="x", path="/?token=wrong"))
            self.assertEqual(server.ask(request(host="x", path="/?token=secret"))[0], 200)
            self.assertEqual(server.ask(request(host="x", Authorization="Bearer secret"))[0], 200)

    def test_bodies_and_heads_are_limited(self):
        with Server() as server:
            self.assertEqual(server.ask(request("POST", "/api/look", LOOK))[0], 200)
            before = server.resident()
            self.refused(server, 413, "262144", request("POST", "/api/look", Content_Length=1 << 40))
            head = request("POST", "/api/look", Transfer_Encoding="chunked")
            chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
            self.refused(server, 413, "262144", head, *[chunk] * 1600)  # 100 MB
            ok = b"5\r\n" + LOOK[:5] + b"\r\n%x\r\n" % (len(LOOK) - 5) + LOOK[5:] + b"\r\n0\r\n\r\n"
            self.assertEqual(server.ask(head, ok)[0], 200)
            packed = gzip.compress(bytes(100 << 20))
            self.refused(server, 415, "Content-Encoding",
                         request("POST", "/api/look", packed, Content_Encoding="gzip"))
            self.refused(server, 501, "chunked",
                         request("POST", "/api/look", Transfer_Encoding="gzip, deflate"))
            many = b"".join(b"X-%d: y\r\n" % i for i in range(50000))
            self.refused(server, 431, "headers", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + many)
            self.refused(server, 431, "headers", b"GET /" + b"a" * (1 << 20))
            self.assertLess(server.resident() - before, (256 if SANITIZED else 32) << 20)

    def test_no_http(self):
        with Server() as server:
            smuggled = request("POST", "/api/look", LOOK, Transfer_Encoding="chunked")
            lengths = request("POST", "/api/look", Content_Length="3\r\nContent-Length: 4")
            for text in (b"\r\n\r\nnonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n",
                         b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", b"GET http://evil.com/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
                         request(path="/%4"), request(path="/%zz"), request(path="*"),
                         request(path="/ x"), b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
                         b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", lengths, smuggled):
                status, body = server.ask(text)
                self.assertEqual(status // 100, 4, (text, body))
            self.assertEqual(server.ask(request(Expect="a miracle"))[0], 417)
            self.assertEqual(server.ask(request())[0], 200)

    def test_several_requests_of_one_connection(self):
        with Server() as server, contextlib.closing(server.connect()) as client:
            for _ in range(3):
                client.sendall(request())
                self.assertEqual(answer(client)[0], 200)
            client.sendall(request("HEAD", "/"))
            head = client.recv(1 << 16)
            self.assertTrue(head.endswith(b"\r\n\r\n"), head)  # a length, and no body
            self.assertGreater(int(re.search(rb"Content-Length: (\d+)", head)[1]), 10000)
            client.sendall(request("POST", "/api/look", Expect="100-continue", Content_Length=len(LOOK)))
            self.assertIn(b" 100 ", client.recv(1 << 16))
            client.sendall(LOOK)
            self.assertEqual(answer(client)[0], 200)
            client.sendall(request("GET", "/nowhere"))
            self.assertEqual(answer(client)[0], 404)
            client.sendall(request())  # an answer that says no is no end
            self.assertEqual(answer(client)[0], 200)

    def test_slow_clients_hold_nobody_up_nor_the_end(self):
        with Server() as server, contextlib.ExitStack() as slow:
            heads = (b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\nX", b"POST /api/look HTTP/1.1\r\n"
                     b"Host: localhost\r\nContent-Length: 100\r\n\r\n{")
            for i in range(400):  # more than one client may have: the oldest make room
                client = slow.enter_context(contextlib.closing(server.connect()))
                client.sendall(heads[i % 4])
            for _ in range(20):
                self.assertEqual(server.ask(request())[0], 200)
                self.assertEqual(server.ask(request("POST", "/api/look", LOOK))[0], 200)
            seconds, status, errors = server.end()
            self.assertEqual(status, 130)
            self.assertIn("ended", errors)
            self.assertLess(seconds, 10 if SANITIZED else 5)

    def test_dripping_a_head_does_not_extend_its_deadline(self):
        with Server() as server, contextlib.closing(server.connect()) as client:
            begin = time.monotonic()
            with self.assertRaises(OSError):
                client.sendall(b"GET / HTTP/1.1\r\n")
                while time.monotonic() - begin < 40:
                    client.sendall(b"X: y\r\n")
                    time.sleep(0.2)
            self.assertLess(time.monotonic() - begin, 30)

    def test_answers_that_are_not_read_take_no_memory_without_end(self):
        with Server() as server, contextlib.ExitStack() as slow:
            before = server.resident()
            for _ in range(200):
                client = slow.enter_context(contextlib.closing(server.connect()))
                client.sendall(request(path="/") * 20)
            self.assertEqual(server.ask(request())[0], 200)
            self.assertLess(server.resident() - before, (512 if SANITIZED else 64) << 20)

    def test_a_look_ends_with_its_client(self):
        with Server(golden="t5") as server:
            text = " ".join("abcd"[i % 4] for i in range(4000))
            long = request("POST", "/api/look", json.dumps({"text": text, "target": "a b"}).encode())
            self.assertEqual(server.ask(long)[0], 200)  # and what is allocated once is there
            begin = server.processor_time()
            self.assertEqual(server.ask(long)[0], 200)
            whole = server.processor_time() - begin
            for _ in range(4):
                with contextlib.closing(server.connect()) as client:
                    client.sendall(long)
            begin = server.processor_time()
            status = 503
            while status == 503:  # until the last of the four has given up its place
                status, _ = server.ask(request("POST", "/api/look", LOOK))
            self.assertEqual(status, 200)
            self.assertLess(server.processor_time() - begin, 2 * whole)

    def test_the_end_does_not_wait_for_a_long_look(self):
        with Server(golden="t5") as server, contextlib.closing(server.connect()) as client:
            text = " ".join("abcd"[i % 4] for i in range(60000))
            client.sendall(request("POST", "/api/look", json.dumps({"text": text}).encode()))
            while server.processor_time() < 2:  # it computes
                time.sleep(0.05)
            seconds, status, errors = server.end()
            self.assertEqual(status, 130)
            self.assertIn("ended", errors)
            self.assertLess(seconds, 10 if SANITIZED else 5)


if __name__ == "__main__":
    unittest.main()
