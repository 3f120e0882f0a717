//! Adapters of a model, which requests choose by their `model`.

use serde_json::json;

use crate::support::{ADAPTERS, TestServer};

#[test]
fn a_request_s_model_chooses_the_adapter() {
    let server = TestServer::start();
    let messages = json!([{ "role": "user", "content": "one two" }]);
    for (name, adapter) in [
        ("echo", None),
        (ADAPTERS[0], Some(0)),
        (ADAPTERS[1], Some(1)),
    ] {
        for (path, body) in [
            ("/v1/completions", json!({ "prompt": "one two" })),
            ("/v1/chat/completions", json!({ "messages": messages })),
            ("/v1/responses", json!({ "input": "one two" })),
            (
                "/v1/messages",
                json!({ "messages": messages, "max_tokens": 9 }),
            ),
        ] {
            let mut body = body;
            body["model"] = name.into();
            let reply = server.post(path, &body);
            assert_eq!(reply.status, 200, "{path}");
            assert_eq!(reply.json()["model"], name, "{path}");
            let request = server.state().request.clone().unwrap();
            assert_eq!(request.adapter, adapter, "{path}");
        }
    }
    // Without a name it is the model itself.
    server.post("/v1/completions", &json!({ "prompt": "one two" }));
    assert_eq!(server.state().request.clone().unwrap().adapter, None);
    let body = json!({ "prompt": "one two", "model": "painter" });
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 404);
    let error = reply.json()["error"]["message"].to_string();
    assert!(error.contains("lawyer"), "{error}");
}

#[test]
fn events_of_a_stream_have_the_adapter_s_name() {
    let server = TestServer::start();
    let body = json!({ "prompt": "one two", "model": ADAPTERS[1], "stream": true });
    let reply = server.post("/v1/completions", &body);
    let text = reply.text();
    assert!(text.contains("\"model\":\"lawyer\""), "{text}");
    assert!(!text.contains("\"model\":\"echo\""), "{text}");
}

#[test]
fn adapters_are_models_with_a_parent() {
    let server = TestServer::start();
    let models = server.get("/v1/models").json();
    let all = models["data"].as_array().unwrap();
    let names: Vec<&str> = all.iter().filter_map(|it| it["id"].as_str()).collect();
    assert_eq!(names, ["echo", "poet", "lawyer"]);
    let parents: Vec<Option<&str>> = all.iter().map(|it| it["parent"].as_str()).collect();
    assert_eq!(parents, [None, Some("echo"), Some("echo")]);
    assert_eq!(
        (&models["first_id"], &models["last_id"]),
        (&json!("echo"), &json!("lawyer"))
    );
    let one = server.get("/v1/models/poet").json();
    assert_eq!(
        (&one["id"], &one["parent"]),
        (&json!("poet"), &json!("echo"))
    );
}
