//! Many requests of which many clients go away.

use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::{HttpReply, TestServer};

/// Requests in all, and clients at once.
const REQUESTS: usize = 1000;
const CLIENTS: usize = 8;

/// What a request came to.
#[derive(Debug, Default)]
struct Outcomes {
    complete: AtomicUsize,
    left: AtomicUsize,
    refused: AtomicUsize,
}

fn one_request(server: &TestServer, random: &mut fastrand::Rng, outcomes: &Outcomes) {
    let words = (0..random.usize(1..20)).map(|_| random.u16(..).to_string());
    let text = words.collect::<Vec<String>>().join(" ");
    let is_stream = random.bool();
    let body = json!({ "prompt": text, "max_tokens": 1000, "stream": is_stream }).to_string();
    let mut client = server.send("POST", "/v1/completions", "", &body);
    if random.u8(..3) == 0 {
        // Gone at once, or behind some of the answer.
        let mut part = vec![0; random.usize(1..400)];
        if random.bool() {
            client.read(&mut part).unwrap_or_default();
        }
        outcomes.left.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let reply = HttpReply::read(client);
    if reply.status == 429 {
        outcomes.refused.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert_eq!(reply.status, 200, "{}", reply.text());
    let given = match is_stream {
        false => reply.json()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned(),
        true => {
            let events = reply.events();
            assert_eq!(
                events.last().unwrap()["choices"][0]["finish_reason"],
                "stop"
            );
            let texts = events
                .iter()
                .map(|it| it["choices"][0]["text"].as_str().unwrap());
            texts.collect()
        }
    };
    assert_eq!(given, text);
    outcomes.complete.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn of_a_thousand_requests_with_disconnects_none_is_lost_and_none_is_left() {
    let server = TestServer::with(|config| (config.running, config.queue) = (4, 2));
    let outcomes = Outcomes::default();
    let seed = fercuda_trials::seed();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, outcomes) = (&server, &outcomes);
            let mut random = fastrand::Rng::with_seed(seed ^ client as u64);
            scope.spawn(move || {
                for _ in 0..REQUESTS / CLIENTS {
                    one_request(server, &mut random, outcomes);
                }
            });
        }
    });
    server.wait_until_idle();
    // Those whose client went before the engine had them end in handlers, a moment later.
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    let (complete, left) = (count(&outcomes.complete), count(&outcomes.left));
    let refused = count(&outcomes.refused);
    assert_eq!(complete + left + refused, REQUESTS);
    std::thread::sleep(Duration::from_millis(50));
    server.wait_until_idle();
    let state = server.state();
    assert_eq!(state.submitted, state.ended + state.cancelled, "{state:?}");
    assert!(state.ended >= complete, "{state:?} {outcomes:?}");
    assert!(complete > REQUESTS / 4, "{outcomes:?}");
    drop(state);
    assert_eq!(server.metric("vllm:num_requests_running"), 0.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    // All places are free again: as many requests as there are places are taken at once.
    server.state().repeats = true;
    server.state().pause = Duration::from_millis(1);
    let body = json!({ "prompt": "x", "max_tokens": 30_000 }).to_string();
    let clients: Vec<_> = (0..6)
        .map(|_| server.send("POST", "/v1/completions", "", &body))
        .collect();
    server.wait_until(|state| state.live == 6);
    drop(clients);
    server.wait_until_idle();
}
