//! Embeddings, and what is refused of them.

use fercuda_tokenizer::Special;
use serde_json::{Value, json};

use crate::support::{TestServer, tokenizer};

const PATH: &str = "/v1/embeddings";

/// Vectors of an answer.
fn vectors(whole: &Value) -> Vec<Vec<f64>> {
    let each = |(index, it): (usize, &Value)| {
        assert_eq!(
            (&it["object"], &it["index"]),
            (&json!("embedding"), &json!(index))
        );
        let elements = it["embedding"].as_array().unwrap().iter();
        elements.map(|it| it.as_f64().unwrap()).collect()
    };
    whole["data"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(each)
        .collect()
}

#[test]
fn inputs_of_each_kind_have_vectors_in_order() {
    let server = TestServer::embedding(3);
    let tokens = |text: &str| tokenizer().encode(text, Special::AsText).unwrap();
    let wanted = |tokens: &[u32]| {
        let sum = f64::from(tokens.iter().sum::<u32>());
        vec![sum, sum + 1.0, sum + 2.0]
    };
    for (input, texts) in [
        (json!("one two"), vec![tokens("one two")]),
        (json!(["one", "two"]), vec![tokens("one"), tokens("two")]),
        (json!([5, 6, 7]), vec![vec![5, 6, 7]]),
        (json!([[5], [6, 7]]), vec![vec![5], vec![6, 7]]),
    ] {
        let body = json!({ "model": "echo", "input": input, "user": "ignored" });
        let reply = server.post(PATH, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let whole = reply.json();
        assert_eq!(server.state().texts, texts);
        let all: Vec<Vec<f64>> = texts.iter().map(|it| wanted(it)).collect();
        assert_eq!(vectors(&whole), all);
        let count: usize = texts.iter().map(Vec::len).sum();
        assert_eq!(
            whole["usage"],
            json!({ "prompt_tokens": count, "total_tokens": count })
        );
        assert_eq!(
            (&whole["object"], &whole["model"]),
            (&json!("list"), &json!("echo"))
        );
    }
    assert!(server.metric("vllm:prompt_tokens_total") > 5.0);
    assert_eq!(server.metric("fercuda:requests_failed_total"), 0.0);
}

#[test]
fn vectors_are_bytes_or_shorter_where_that_is_asked_for() {
    let server = TestServer::embedding(3);
    let body = json!({ "input": [1], "encoding_format": "base64" });
    let whole = server.post(PATH, &body).json();
    // 1, 2 and 3 as little-endian f32.
    assert_eq!(whole["data"][0]["embedding"], "AACAPwAAAEAAAEBA");
    let body = json!({ "input": [3], "encoding_format": "float", "dimensions": 2 });
    let short = vectors(&server.post(PATH, &body).json()).remove(0);
    assert!(
        (short[0] - 0.6).abs() < 1e-6 && (short[1] - 0.8).abs() < 1e-6,
        "{short:?}"
    );
    let body = json!({ "input": [3], "dimensions": 3 });
    assert_eq!(vectors(&server.post(PATH, &body).json()), [[3.0, 4.0, 5.0]]);
}

#[test]
fn what_has_no_vector_is_refused_and_failures_are_none_of_the_client() {
    let server = TestServer::embedding(3);
    let refused = |server: &TestServer, body: Value, status: u16, param: &str, said: &str| {
        let reply = server.post(PATH, &body);
        let error = reply.json()["error"].take();
        assert_eq!(reply.status, status, "{body}: {error}");
        assert_eq!(
            error["param"].as_str().unwrap_or(""),
            param,
            "{body}: {error}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(said),
            "{body}: {error}"
        );
    };
    for (body, param, said) in [
        (json!({}), "input", "missing"),
        (json!({ "input": "" }), "input", "empty"),
        (json!({ "input": [] }), "input", "none"),
        (json!({ "input": [[]] }), "input", "no tokens"),
        (json!({ "input": ["a", ""] }), "input", "empty"),
        (json!({ "input": 5 }), "input", "expected"),
        (json!({ "input": [1, "a"] }), "input", "expected"),
        (json!({ "input": ["a", 1] }), "input", "expected"),
        (json!({ "input": vec!["a"; 2049] }), "input", "2049 texts"),
        (
            json!({ "input": vec![1; 40_001] }),
            "input",
            "the context 40000",
        ),
        (json!({ "input": [9001] }), "input", "another model"),
        (
            json!({ "input": "a", "encoding_format": "hex" }),
            "encoding_format",
            "hex",
        ),
        (
            json!({ "input": "a", "dimensions": 0 }),
            "dimensions",
            "1 to 3",
        ),
        (
            json!({ "input": "a", "dimensions": 4 }),
            "dimensions",
            "1 to 3",
        ),
        (
            json!({ "input": "a", "truncate_prompt_tokens": 5 }),
            "truncate_prompt_tokens",
            "not",
        ),
    ] {
        refused(&server, body, 400, param, said);
    }
    refused(
        &server,
        json!({ "input": "a", "model": "b" }),
        404,
        "model",
        "echo",
    );
    server.state().fails = true;
    refused(
        &server,
        json!({ "input": "a" }),
        500,
        "",
        "could not be computed",
    );
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.post(PATH, &json!({ "input": "a" })).status, 200);
    assert_eq!(server.get("/health").status, 200);
    // Such a model generates nothing, and others have no vectors.
    let text = json!({ "prompt": "x" });
    let reply = server.post("/v1/completions", &text);
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("/v1/embeddings"), "{}", reply.text());
    let other = TestServer::start();
    refused(
        &other,
        json!({ "input": "a" }),
        400,
        "model",
        "makes no embeddings",
    );
    assert_eq!(other.post("/v1/completions", &text).status, 200);
}
