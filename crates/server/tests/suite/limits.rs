//! Keys, hosts, bodies, queue, times, and the end of a server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::json;

use crate::support::{HttpReply, TestServer};

const COMPLETIONS: &str = "/v1/completions";

fn endless() -> String {
    json!({ "prompt": "again and again ", "max_tokens": 30_000, "stream": true }).to_string()
}

#[test]
fn keys_are_wanted_for_requests_alone() {
    let server = TestServer::with(|config| config.api_key = Some("a secret".to_owned()));
    let body = json!({ "prompt": "x" }).to_string();
    let status =
        |headers: &str| HttpReply::read(server.send("POST", COMPLETIONS, headers, &body)).status;
    assert_eq!(status("Authorization: Bearer a secret\r\n"), 200);
    assert_eq!(status("authorization: bearer a secret\r\n"), 200);
    for wrong in [
        "",
        "Authorization: Bearer a secreT\r\n",
        "Authorization: Basic a secret\r\n",
    ] {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
    let refused = server.get("/v1/models");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    for open in ["/health", "/metrics", "/"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
}

#[test]
fn other_sites_cannot_use_a_server_on_loopback() {
    let server = TestServer::start();
    let raw = |head: &str| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        HttpReply::read(stream)
    };
    let end = "Connection: close\r\n\r\n";
    let reply = raw(&format!(
        "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n{end}"
    ));
    assert_eq!(reply.status, 403);
    let plain = "Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n";
    let reply = raw(&format!("POST {COMPLETIONS} HTTP/1.1\r\n{plain}{end}"));
    assert_eq!(reply.status, 415);
    let page = server.get("/");
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'")
    );
    assert!(page.text().contains("<title>feRcuda</title>"));
    // What it shows of the device.
    let pool = server.get("/v1/pool").json();
    assert_eq!(pool["blocks"], json!({ "all": 8, "free": 8, "kept": 3 }));
    assert_eq!(pool["memory"]["block_bytes"], 10);
    assert_eq!(pool["memory"]["total_bytes"], 1000);
}

#[test]
fn malformed_large_and_slow_bodies_are_refused() {
    let server = TestServer::with(|config| {
        config.body_bytes = 1000;
        config.body_time = Duration::from_millis(300);
    });
    let status =
        |path: &str, body: &str| HttpReply::read(server.send("POST", path, "", body)).status;
    let deep = "[".repeat(900);
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{}",
        "{\"prompt\": \"\u{0}\"}",
        "\"x\"",
        deep.as_str(),
    ] {
        for path in [COMPLETIONS, "/v1/chat/completions", "/v1/messages"] {
            assert_eq!(status(path, body), 400, "{path} {body}");
        }
    }
    assert_eq!(status(COMPLETIONS, &"x".repeat(1001)), 413);
    assert_eq!(status(COMPLETIONS, &"x".repeat(7000)), 413);
    assert_eq!(status("/v1/nothing", "{}"), 404);
    assert_eq!(server.get(COMPLETIONS).status, 405);
    let mut slow = TcpStream::connect(server.address).unwrap();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\n{head}");
    slow.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_eq!(
        server.post(COMPLETIONS, &json!({ "prompt": "x" })).status,
        200
    );
    assert_eq!(server.state().submitted, 1);
}

#[test]
fn a_full_queue_is_429_until_a_client_goes() {
    let server = TestServer::with(|config| (config.running, config.queue) = (1, 1));
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let first = server.send("POST", COMPLETIONS, "", &endless());
    let second = server.send("POST", COMPLETIONS, "", &endless());
    server.wait_until(|state| state.live == 2);
    let body = json!({ "prompt": "x", "max_tokens": 1 });
    let refused = server.post(COMPLETIONS, &body);
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(
        refused.head.contains("retry-after: 1\r\n"),
        "{}",
        refused.head
    );
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(server.metric("fercuda:requests_refused_total"), 1.0);
    // Published by the next step.
    while server.metric("vllm:num_requests_running") < 2.0 {}
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.25);
    drop(first);
    server.wait_until(|state| state.live == 1);
    assert_eq!(server.post(COMPLETIONS, &body).status, 200);
    drop(second);
    server.wait_until_idle();
}

#[test]
fn connections_beyond_the_limit_are_refused_until_one_ends() {
    let server = TestServer::with(|config| config.connections = 2);
    let open = [0, 1].map(|_| TcpStream::connect(server.address).unwrap());
    // Accepted, if a third is refused.
    let refused = server.post(COMPLETIONS, &json!({ "prompt": "x ".repeat(9000) }));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["code"], "connections");
    assert!(refused.head.contains("Retry-After: 1\r\n"));
    let health = server.get("/health");
    assert_eq!(
        (health.status, health.json()["status"].as_str()),
        (200, Some("ok"))
    );
    drop(open);
    let begun = Instant::now();
    while server.post(COMPLETIONS, &json!({ "prompt": "x" })).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn requests_without_a_stream_are_cancelled_too_when_their_client_goes() {
    let server = TestServer::start();
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let body = json!({ "prompt": "x", "max_tokens": 30_000 }).to_string();
    let client = server.send("POST", COMPLETIONS, "", &body);
    server.wait_until(|state| state.live == 1);
    drop(client);
    server.wait_until_idle();
    assert_eq!(server.state().cancelled, 1);
    assert_eq!(server.state().ended, 0);
}

#[test]
fn clients_are_seen_to_go_behind_what_they_have_sent_besides() {
    let server = TestServer::start();
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let body = json!({ "prompt": "x", "max_tokens": 30_000 }).to_string();
    let more = ["\r\n", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"];
    for (index, more) in more.iter().enumerate() {
        let mut client = TcpStream::connect(server.address).unwrap();
        let length = body.len();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}{more}"
        );
        client.write_all(head.as_bytes()).unwrap();
        server.wait_until(|state| state.live == 1);
        drop(client);
        server.wait_until_idle();
        assert_eq!(server.state().cancelled, index + 1, "{more:?}");
    }
    assert_eq!(server.state().ended, 0);
}

#[test]
fn silent_connections_end_by_time_and_with_the_server() {
    let server = TestServer::with(|config| config.head_time = Duration::from_millis(200));
    let is_closed = |mut stream: &TcpStream| {
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).is_ok_and(|_| true)
    };
    let silent = TcpStream::connect(server.address).unwrap();
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /health HTTP/1.1\r\nHost: local")
        .unwrap();
    assert!(is_closed(&silent) && is_closed(&half));
    drop(server);
    let server = TestServer::with(|config| config.head_time = Duration::from_secs(600));
    let silent = TcpStream::connect(server.address).unwrap();
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /health HTTP/1.1\r\nHost: local")
        .unwrap();
    // Behind these, so that they are accepted.
    assert_eq!(server.get("/health").status, 200);
    server.stop.stop();
    assert!(is_closed(&silent) && is_closed(&half));
    let begun = Instant::now();
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn requests_that_take_too_long_end_whole_or_streamed() {
    let server = TestServer::with(|config| config.time_out = Duration::from_millis(150));
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let whole = server.post(COMPLETIONS, &json!({ "prompt": "x", "max_tokens": 30_000 }));
    assert_eq!(whole.status, 504, "{}", whole.text());
    let streamed = HttpReply::read(server.send("POST", COMPLETIONS, "", &endless()));
    assert_eq!(streamed.status, 200);
    let events = streamed.events();
    let error = &events.last().unwrap()["error"]["message"];
    assert!(error.as_str().unwrap().contains("longer"), "{error}");
    server.wait_until_idle();
    assert_eq!(server.state().cancelled, 2);
}

#[test]
fn a_client_that_does_not_read_is_closed_and_others_go_on() {
    let server = TestServer::with(|config| config.write_time = Duration::from_millis(300));
    server.state().repeats = true;
    let body = json!({
        "messages": [{ "role": "user", "content": "a" }], "max_tokens": 12_000, "stream": true,
        "logprobs": true, "top_logprobs": 20,
    });
    let begun = Instant::now();
    // More bytes than the system keeps for a connection whose client's buffer does not grow.
    let mut stalled = server.send("POST", "/v1/chat/completions", "", &body.to_string());
    set_socket_recv_buffer_size(&stalled, 1 << 16).unwrap();
    server.wait_until(|state| state.live == 1);
    let other = server.post(COMPLETIONS, &json!({ "prompt": "abc", "max_tokens": 9 }));
    assert_eq!(other.status, 200);
    // The engine does not wait for it, and ends.
    server.wait_until_idle();
    // On a machine that is busy, writing takes longer as well.
    std::thread::sleep(Duration::from_millis(1500) + 6 * begun.elapsed());
    let mut all = Vec::new();
    let read = stalled.read_to_end(&mut all);
    assert!(
        read.is_err() || !all.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"),
        "{}",
        all.len()
    );
    assert_eq!(server.state().ended, 2);
}

#[test]
fn an_error_of_the_engine_ends_its_requests_and_shows_in_health() {
    let server = TestServer::start();
    server.state().fails = true;
    let failed = server.post(COMPLETIONS, &json!({ "prompt": "x" }));
    assert_eq!(failed.status, 500);
    let message = failed.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    // The reason is the operator's.
    assert!(
        !message.contains("device") && message.contains("log"),
        "{message}"
    );
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.state().live, 0);
    assert_eq!(
        server.post(COMPLETIONS, &json!({ "prompt": "x" })).status,
        200
    );
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_server_that_stops_ends_what_runs_and_takes_nothing_new() {
    let server = TestServer::start();
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let body = json!({ "prompt": "abc", "max_tokens": 300, "stream": true }).to_string();
    let running = server.send("POST", COMPLETIONS, "", &body);
    server.wait_until(|state| state.live == 1);
    // One that is open already.
    let mut open = TcpStream::connect(server.address).unwrap();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n";
    write!(open, "POST {COMPLETIONS} HTTP/1.1\r\n{head}").unwrap();
    std::thread::sleep(Duration::from_millis(30));
    server.stop.stop();
    open.write_all(b"{\"prompt\":\"x\"}").unwrap();
    let whole = HttpReply::read(running);
    assert!(whole.text().ends_with("data: [DONE]\n\n"));
    let begun = Instant::now();
    let address = server.address;
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn models_health_and_metrics() {
    let server = TestServer::start();
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "echo");
    assert_eq!(
        server.get("/v1/models/echo").json()["max_model_len"],
        40_000
    );
    for unknown in ["other", "%ff", "a%2fb"] {
        let reply = server.get(&format!("/v1/models/{unknown}"));
        assert_eq!(reply.status, 404);
        assert_eq!(
            reply.json()["error"]["code"],
            "model_not_found",
            "{unknown}"
        );
    }
    assert_eq!(server.get("/health").json()["status"], "ok");
    server.post(
        COMPLETIONS,
        &json!({ "prompt": "one two three", "max_tokens": 3 }),
    );
    let prompt = server.state().prompt.len() as f64;
    assert_eq!(server.metric("vllm:prompt_tokens_total"), prompt);
    assert_eq!(server.metric("vllm:generation_tokens_total"), 3.0);
    assert_eq!(server.metric("vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(server.metric("vllm:inter_token_latency_seconds_count"), 2.0);
    let label = "{model_name=\"echo\",finished_reason=\"length\"}";
    assert_eq!(
        server.metric(&format!("vllm:request_success_total{label}")),
        1.0
    );
}
