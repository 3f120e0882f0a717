//! OpenAI's responses: whole, as events, and one behind the other.

use fercuda_tokenizer::Special;
use serde_json::{Value, json};

use crate::support::{TestServer, tokenizer};
use crate::tools::HERMES;

const PATH: &str = "/v1/responses";

/// A server whose model answers with this text.
fn answering(text: &str) -> TestServer {
    let server = TestServer::with_template(HERMES, |_| {});
    let tokens = tokenizer().encode_part(text, Special::AsText).unwrap();
    server.state().answer = Some(tokens);
    server
}

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "string" } } });
    json!([{ "type": "function", "name": "weather", "description": "How it is.",
        "parameters": parameters, "strict": false }])
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|it| it["type"].as_str().unwrap());
    kinds.filter(|it| !it.ends_with(".delta")).collect()
}

/// Items that the events of a stream make, as a client would.
fn replayed(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let at = event["output_index"].as_u64().unwrap_or(0) as usize;
        let add = |to: &mut Value| {
            let text = to.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
            *to = text.into();
        };
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(at, items.len());
                assert_eq!(event["item"]["status"], "in_progress");
                items.push(event["item"].clone());
            }
            "response.content_part.added" => items[at]["content"] = json!([event["part"]]),
            "response.output_text.delta" => {
                assert_eq!(event["item_id"], items[at]["id"]);
                add(&mut items[at]["content"][0]["text"]);
            }
            "response.function_call_arguments.delta" => add(&mut items[at]["arguments"]),
            "response.output_text.done" => {
                assert_eq!(event["text"], items[at]["content"][0]["text"]);
            }
            "response.output_item.done" => {
                items[at]["status"] = "completed".into();
                assert_eq!(event["item"], items[at]);
            }
            _ => {}
        }
    }
    items
}

#[test]
fn a_response_is_the_same_whole_and_streamed() {
    let server = TestServer::start();
    let mut body = json!({
        "model": "echo", "input": "one two", "instructions": "Be brief.", "metadata": { "a": "b" },
    });
    let whole = server.post(PATH, &body).json();
    let text = "system\nBe brief.\nuser\none two\nassistant\n";
    assert_eq!(
        (&whole["object"], &whole["status"]),
        (&json!("response"), &json!("completed"))
    );
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["role"]),
        (&json!("message"), &json!("assistant"))
    );
    let part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    let prompt = server.state().prompt.len();
    assert_eq!(whole["usage"]["input_tokens"], prompt);
    assert_eq!(whole["usage"]["total_tokens"], 2 * prompt + 1);
    assert_eq!(
        whole["usage"]["input_tokens_details"]["cached_tokens"],
        prompt / 16 * 16
    );
    for (name, value) in [
        ("instructions", json!("Be brief.")),
        ("metadata", json!({ "a": "b" })),
        ("store", json!(true)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("text", json!({ "format": { "type": "text" } })),
        ("previous_response_id", Value::Null),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
    ] {
        assert_eq!(whole[name], value, "{name}");
    }
    body["stream"] = true.into();
    let reply = server.post(PATH, &body);
    assert!(!reply.text().contains("[DONE]"));
    let events = reply.events();
    let names = reply.text();
    let names = names.lines().filter_map(|it| it.strip_prefix("event: "));
    assert!(names.eq(events.iter().map(|it| it["type"].as_str().unwrap())));
    assert_eq!(
        kinds(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let items = replayed(&events);
    assert_eq!(items[0]["content"], item["content"]);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"], json!(items));
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    body["max_output_tokens"] = 3.into();
    let cut = server.post(PATH, &body).events().pop().unwrap();
    assert_eq!(cut["type"], "response.incomplete");
    let details = &cut["response"]["incomplete_details"];
    assert_eq!(*details, json!({ "reason": "max_output_tokens" }));
}

#[test]
fn responses_go_on_with_others_that_are_kept() {
    let server = TestServer::start();
    let mut first = json!({ "input": "one", "instructions": "Be brief.", "max_output_tokens": 4 });
    let kept = server.post(PATH, &first).json();
    let id = kept["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("{PATH}/{id}")).json(), kept);
    let said = kept["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap()
        .trim()
        .to_owned();
    let behind = json!({
        "previous_response_id": id, "stream": true,
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "two" }] }],
    });
    let reply = server.post(PATH, &behind);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = tokenizer().decode(&server.state().prompt);
    // Instructions are those of their own request.
    assert_eq!(
        prompt,
        format!("user\none\nassistant\n{said}\nuser\ntwo\nassistant\n")
    );
    let second = reply.events().pop().unwrap()["response"]["id"].take();
    let third = json!({ "previous_response_id": second, "input": "three" });
    assert_eq!(server.post(PATH, &third).status, 200);
    let prompt = tokenizer().decode(&server.state().prompt);
    assert!(prompt.starts_with("user\none\nassistant\n") && prompt.contains("user\nthree"));
    first["store"] = false.into();
    let lost = server.post(PATH, &first).json();
    let lost = lost["id"].as_str().unwrap();
    let delete = |id: &str| {
        let path = format!("{PATH}/{id}");
        crate::support::HttpReply::read(server.send("DELETE", &path, "", ""))
    };
    assert_eq!(
        delete(id).json(),
        json!({ "id": id, "object": "response", "deleted": true })
    );
    for id in [lost, id, "resp_0"] {
        assert_eq!(server.get(&format!("{PATH}/{id}")).status, 404);
        assert_eq!(delete(id).status, 404);
        let reply = server.post(PATH, &json!({ "previous_response_id": id, "input": "x" }));
        let error = reply.json()["error"].take();
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!("previous_response_id"))
        );
    }
}

#[test]
fn calls_are_items_and_their_outputs_reach_the_template() {
    let server = answering(
        "Let me see.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"x\": \"na\u{ef}ve\"}}\n\
         </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
    );
    let mut body = json!({ "input": "How is it?", "tools": tools() });
    let whole = server.post(PATH, &body).json();
    let output = whole["output"].as_array().unwrap();
    assert_eq!(output.len(), 3, "{whole}");
    assert_eq!(output[0]["content"][0]["text"], "Let me see.");
    assert_eq!(output[1]["type"], "function_call");
    assert_eq!(output[1]["arguments"], "{\"x\":\"na\u{ef}ve\"}");
    assert_ne!(output[1]["call_id"], output[2]["call_id"]);
    assert_eq!(whole["tools"], tools());
    body["stream"] = true.into();
    let events = server.post(PATH, &body).events();
    let items = replayed(&events);
    assert_eq!(items.len(), 3);
    for (streamed, item) in items.iter().zip(output) {
        assert_eq!(
            (&streamed["content"], &streamed["name"]),
            (&item["content"], &item["name"])
        );
        assert_eq!(streamed["arguments"], item["arguments"]);
    }
    // The answers of tools, behind the kept response and behind items that the client sends.
    let outputs = json!([
        { "type": "function_call_output", "call_id": output[1]["call_id"], "output": "fine" },
        { "type": "function_call_output", "call_id": output[2]["call_id"],
          "output": [{ "type": "input_text", "text": "bad" }] },
    ]);
    let mut items = vec![json!({ "role": "user", "content": "How is it?" })];
    items.extend(output.iter().cloned());
    items.push(json!({ "type": "reasoning", "summary": [] }));
    items.extend(outputs.as_array().unwrap().iter().cloned());
    for behind in [
        json!({ "previous_response_id": whole["id"], "input": outputs, "tools": tools() }),
        json!({ "input": items, "tools": tools() }),
    ] {
        let reply = server.post(PATH, &behind);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let prompt = tokenizer().decode(&server.state().prompt);
        let call = output[1]["call_id"].as_str().unwrap();
        let wanted = format!(
            "user:How is it?\nassistant:Let me see.weatherna\u{ef}veweather\ntool:fine{call}\ntool:bad"
        );
        assert!(prompt.contains(&wanted), "{prompt}\n{wanted}");
    }
    // One has to be called.
    for choice in [
        json!("required"),
        json!({ "type": "function", "name": "weather" }),
    ] {
        server.state().answer = Some(vec![100]);
        let body = json!({ "input": "x", "tools": tools(), "tool_choice": choice });
        let whole = server.post(PATH, &body).json();
        assert_eq!(whole["output"][0]["type"], "function_call", "{whole}");
        assert_eq!(whole["tool_choice"], choice);
    }
}

#[test]
fn formats_are_followed_and_tokens_shown() {
    let server = TestServer::start();
    let schema = json!({ "type": "array", "items": { "const": 1 }, "maxItems": 2 });
    let format = json!({ "type": "json_schema", "name": "ones", "schema": schema, "strict": true });
    let whole = server
        .post(PATH, &json!({ "input": "x", "text": { "format": format } }))
        .json();
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Vec<u8>>(text).is_ok(), "{whole}");
    assert_eq!(whole["text"]["format"]["name"], "ones");
    let body =
        json!({ "input": "x", "top_logprobs": 2, "include": ["message.output_text.logprobs"] });
    let whole = server.post(PATH, &body).json();
    let part = &whole["output"][0]["content"][0];
    let logs = part["logprobs"].as_array().unwrap();
    // Control tokens that the engine repeats are tokens, and no text.
    let texts = logs.iter().map(|it| it["token"].as_str().unwrap());
    let texts = texts.filter(|it| !it.starts_with('<'));
    assert_eq!(texts.collect::<String>(), part["text"].as_str().unwrap());
    assert!(
        logs.iter()
            .all(|it| it["top_logprobs"].as_array().unwrap().len() == 2)
    );
}

/// What may be a call is held back until it is known to be none.
#[test]
fn tokens_of_text_that_is_held_back_are_shown() {
    let server = answering("<tool_cal");
    let body = json!({ "input": "x", "tools": tools(), "top_logprobs": 1,
        "include": ["message.output_text.logprobs"] });
    let whole = server.post(PATH, &body).json();
    let part = &whole["output"][0]["content"][0];
    let logs = part["logprobs"].as_array().unwrap();
    let texts = logs.iter().map(|it| it["token"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), "<tool_cal", "{whole}");
}

#[test]
fn what_is_wrong_or_not_there_is_refused_with_its_member() {
    let server = TestServer::start();
    for (members, param, said) in [
        (json!({ "input": null }), "input", "missing"),
        (json!({ "input": [] }), "input", "none"),
        (json!({ "input": 5 }), "input", "a text or a list"),
        (
            json!({ "input": [{ "type": "web_search_call" }] }),
            "input",
            "web_search_call",
        ),
        (
            json!({ "input": [{ "type": "reasoning" }] }),
            "input",
            "no message",
        ),
        (
            json!({ "input": [{ "role": "tool", "content": "x" }] }),
            "input",
            "a role of",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input",
            "only texts",
        ),
        (
            json!({ "input": [{ "type": "function_call", "call_id": "c", "name": "f",
                "arguments": "[]" }] }),
            "input",
            "no JSON object",
        ),
        (
            json!({ "tools": [{ "type": "web_search" }] }),
            "tools",
            "web_search",
        ),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools",
            "missing",
        ),
        (
            json!({ "tool_choice": "required" }),
            "tool_choice",
            "no tools",
        ),
        (
            json!({ "tools": tools(), "tool_choice": "some" }),
            "tool_choice",
            "required",
        ),
        (json!({ "stop": ["x"] }), "stop", "not supported"),
        (json!({ "background": true }), "background", "not supported"),
        (
            json!({ "truncation": "auto" }),
            "truncation",
            "not supported",
        ),
        (
            json!({ "conversation": "c" }),
            "conversation",
            "not supported",
        ),
        (
            json!({ "max_output_tokens": 0 }),
            "max_output_tokens",
            "less than 1",
        ),
        (json!({ "temperature": 3 }), "temperature", "between"),
        (
            json!({ "text": { "format": { "type": "yaml" } } }),
            "text",
            "yaml",
        ),
        (json!({ "metadata": 5 }), "metadata", "an object"),
    ] {
        let mut body = json!({ "input": "x" });
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = server.post(PATH, &body);
        let error = reply.json()["error"].take();
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
    server.state().fails = true;
    let events = server
        .post(PATH, &json!({ "input": "x", "stream": true }))
        .events();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
}
