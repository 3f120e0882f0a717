//! Paths, keys and bodies.

use std::future::poll_fn;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::answer::{AnswerDesk, AnswerFormat, ChosenModel, RunningAnswer};
use crate::anthropic::AnthropicFormat;
use crate::anthropic_request::MessagesRequest;
use crate::api_error::{ApiError, ErrorKind};
use crate::client_watch::ClientWatch;
use crate::embeddings::read_embeddings;
use crate::openai::OpenaiFormat;
use crate::openai_request::{OpenaiRequest, read_chat, read_completion};
use crate::order::refuse;
use crate::response_store::ResponseStore;
use crate::responses::{ResponseOutput, ResponsesFormat};
use crate::responses_request::read_responses;
use crate::stream::EventStream;

const PAGE: &str = include_str!("page.html");
/// What a browser may do on the page: nothing but talk with this server.
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; \
                           style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";

/// What handlers share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) desk: AnswerDesk,
    pub(crate) key: Option<String>,
    pub(crate) body_bytes: usize,
    pub(crate) body_time: Duration,
    /// Whether only names of this machine are taken as hosts.
    pub(crate) checks_host: bool,
    /// Set when no more requests are taken.
    pub(crate) stops: Arc<AtomicBool>,
    pub(crate) numbers: AnswerNumbers,
    pub(crate) responses: Arc<ResponseStore>,
}

/// Names of answers, no two alike, which cannot be guessed.
#[derive(Debug, Default)]
pub(crate) struct AnswerNumbers {
    state: RandomState,
    next: AtomicU64,
}

impl AnswerNumbers {
    fn id(&self, prefix: &str) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut hasher = self.state.build_hasher();
        hasher.write_u64(number);
        format!("{prefix}{:016x}{number:x}", hasher.finish())
    }
}

type Shared = State<Arc<Service>>;

/// Seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}

fn is_anthropic(path: &str) -> bool {
    path.starts_with("/v1/messages")
}

fn json_response(status: u16, value: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, kind)], value.to_string()).into_response()
}

/// An error in the shape of the API that the path belongs to.
fn error_response(path: &str, error: &ApiError) -> Response {
    let value = match is_anthropic(path) {
        true => error.to_anthropic(),
        false => error.to_openai(),
    };
    let mut response = json_response(error.status(), &value);
    if let Some(seconds) = error.retry_after {
        let value = HeaderValue::from(seconds);
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// Whether two keys are equal, in time that depends on the length of the given one alone.
fn is_equal_key(given: &[u8], expected: &[u8]) -> bool {
    let mut differs = given.len() ^ expected.len();
    for (at, byte) in given.iter().enumerate() {
        let other = expected.get(at % expected.len().max(1)).copied();
        differs |= usize::from(std::hint::black_box(byte ^ other.unwrap_or(0)));
    }
    std::hint::black_box(differs) == 0
}

/// The key of a request, by the header of either API.
fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer.and_then(|it| {
        let (scheme, key) = it.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Whether a host is this machine by `localhost` or any address: what no foreign site has as name.
fn is_own_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

impl Service {
    fn admit(&self, request: &Request) -> Result<(), ApiError> {
        let host = request.headers().get(HOST).and_then(|it| it.to_str().ok());
        if self.checks_host && host.is_some_and(|host| !is_own_host(host)) {
            let message = "a host of another name than localhost; try --api-key";
            return Err(ApiError::new(ErrorKind::Host, message));
        }
        if let Some(key) = &self.key
            && request.uri().path().starts_with("/v1")
            && !given_key(request.headers()).is_some_and(|it| is_equal_key(it, key.as_bytes()))
        {
            let message = "no valid key; send it as Authorization: Bearer KEY, or as x-api-key";
            return Err(ApiError::new(ErrorKind::Key, message));
        }
        if self.stops.load(Ordering::Relaxed) && request.method() == "POST" {
            let stops = ApiError::new(ErrorKind::Unavailable, "the server stops");
            return Err(ApiError {
                retry_after: Some(5),
                ..stops
            });
        }
        Ok(())
    }

    /// Reads a JSON body within the limits.
    async fn body(&self, request: Request) -> Result<Vec<u8>, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|it| it.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or("").trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let message = "the body has to be of the type application/json";
            return Err(ApiError::new(ErrorKind::MediaType, message));
        }
        let body = read_body(request.into_body(), self.body_bytes);
        match tokio::time::timeout(self.body_time, body).await {
            Ok(body) => body,
            Err(_) => {
                let message = format!("the body took more than {:?}", self.body_time);
                Err(ApiError::new(ErrorKind::BodyTooSlow, message))
            }
        }
    }

    /// The answer to a request that the engine has accepted.
    async fn respond(
        &self,
        answer: RunningAnswer,
        mut format: impl AnswerFormat,
        is_stream: bool,
    ) -> Result<Response, ApiError> {
        if !is_stream {
            let (text, tokens, end) = answer.collect().await?;
            return Ok(json_response(200, &format.whole(&text, &tokens, &end)));
        }
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ];
        let body = Body::from_stream(EventStream::new(answer, format));
        Ok((headers, body).into_response())
    }

    async fn chat(&self, request: Request) -> Result<Response, ApiError> {
        let client = client_of(&request);
        let request = read_chat(&self.body(request).await?)?;
        self.openai(request, true, client).await
    }

    async fn complete(&self, request: Request) -> Result<Response, ApiError> {
        let client = client_of(&request);
        let request = read_completion(&self.body(request).await?)?;
        self.openai(request, false, client).await
    }

    /// Answers in the form of OpenAI's chats or of its completions.
    async fn openai(
        &self,
        request: OpenaiRequest,
        is_chat: bool,
        client: Option<ClientWatch>,
    ) -> Result<Response, ApiError> {
        let model = self.desk.choose(request.model.as_deref())?;
        let order = request.order;
        let shows_tokens = order.top.is_some();
        let tools = model.served.tool_reader(&order.tools)?;
        let (answer, prompt) = self.desk.submit(order, model.adapter, client).await?;
        let format = OpenaiFormat {
            model,
            id: self.numbers.id(if is_chat { "chatcmpl-" } else { "cmpl-" }),
            created: seconds_now(),
            is_chat,
            shows_tokens,
            includes_usage: request.includes_usage,
            prompt,
            offset: 0,
            tools,
        };
        self.respond(answer, format, request.is_stream).await
    }

    async fn embed(&self, request: Request) -> Result<Response, ApiError> {
        let client = client_of(&request);
        let model = Arc::clone(&self.desk.model);
        let request = read_embeddings(&self.body(request).await?, model.embedding)?;
        model.adapter_of(request.model.as_deref())?;
        let shape = request.shape();
        let (vectors, tokens) = self.desk.embed(request.inputs, client).await?;
        Ok(json_response(
            200,
            &shape.answer(&vectors, &model.name, tokens),
        ))
    }

    async fn respond_to(&self, request: Request) -> Result<Response, ApiError> {
        let client = client_of(&request);
        let mut request = read_responses(&self.body(request).await?)?;
        let model = self.desk.choose(request.model.as_deref())?;
        let before = match &request.previous {
            None => Vec::new(),
            Some(id) => match self.responses.find(id) {
                Some(stored) => stored.messages.clone(),
                None => return Err(no_response("previous_response_id", id, ErrorKind::Invalid)),
            },
        };
        let tools = model.served.tool_reader(&request.order.tools)?;
        let store = request.is_stored.then(|| {
            let messages = before.iter().chain(&request.messages).cloned();
            (Arc::clone(&self.responses), messages.collect())
        });
        let (is_stream, shows_tokens) = (request.is_stream, request.order.top.is_some());
        let shown = std::mem::take(&mut request.shown);
        let order = request.into_order(&before);
        let submitted = self.desk.submit(order, model.adapter, client).await;
        let (answer, prompt) = submitted.map_err(|error| error.renamed("messages", "input"))?;
        let format = ResponsesFormat {
            model,
            number: self.numbers.id(""),
            created: seconds_now(),
            prompt,
            shown,
            shows_tokens,
            tools,
            store,
            output: ResponseOutput::default(),
        };
        self.respond(answer, format, is_stream).await
    }

    /// A response that is kept.
    fn response(&self, id: &str) -> Result<Response, ApiError> {
        match self.responses.find(id) {
            Some(stored) => Ok(json_response(200, &stored.response)),
            None => Err(no_response("response_id", id, ErrorKind::NotFound)),
        }
    }

    /// Forgets a response.
    fn delete_response(&self, id: &str) -> Result<Response, ApiError> {
        match self.responses.delete(id) {
            true => {
                let deleted = json!({ "id": id, "object": "response", "deleted": true });
                Ok(json_response(200, &deleted))
            }
            false => Err(no_response("response_id", id, ErrorKind::NotFound)),
        }
    }

    async fn message(&self, request: Request) -> Result<Response, ApiError> {
        let client = client_of(&request);
        let mut body = MessagesRequest::read(&self.body(request).await?)?;
        let model = self.desk.choose(body.model.as_deref())?;
        refuse("model", body.model.is_none(), "requests without one are")?;
        let is_stream = body.take_stream()?;
        let order = body.into_order()?;
        let tools = model.served.tool_reader(&order.tools)?;
        let (answer, prompt) = self.desk.submit(order, model.adapter, client).await?;
        let format = AnthropicFormat {
            model,
            id: self.numbers.id("msg_"),
            prompt,
            tools,
            open_block: None,
            next_block: 0,
        };
        self.respond(answer, format, is_stream).await
    }

    async fn count(&self, request: Request) -> Result<Response, ApiError> {
        let mut body = MessagesRequest::read(&self.body(request).await?)?;
        self.desk.choose(body.model.as_deref())?;
        let (prompt, _) = body.take_prompt()?;
        let (tokens, _) = self.desk.encode(prompt).await?;
        Ok(json_response(200, &json!({ "input_tokens": tokens.len() })))
    }

    /// Status and JSON of the server's health.
    pub(crate) fn health(&self) -> (u16, Value) {
        let (status, state) = match self.desk.metrics.is_healthy() {
            _ if self.stops.load(Ordering::Relaxed) => (503, "stopping"),
            true => (200, "ok"),
            false => (503, "the last step has failed"),
        };
        (status, json!({ "status": state }))
    }

    /// The model, or with one of its adapters, as both APIs show one.
    fn model(chosen: &ChosenModel) -> Value {
        let (model, name) = (&chosen.served, chosen.name());
        let mut shown = json!({
            "id": name, "object": "model", "created": model.created, "owned_by": "fercuda",
            "max_model_len": model.context, "max_input_tokens": model.context,
            "type": "model", "display_name": name, "created_at": rfc3339(model.created),
        });
        if chosen.adapter.is_some() {
            shown["parent"] = model.name.as_str().into();
        }
        shown
    }
}

/// Seconds since 1970 as a date and time of UTC.
fn rfc3339(seconds: u64) -> String {
    let days = seconds / 86_400;
    let (mut year, mut day) = (1970, days);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let length = |year| if is_leap(year) { 366 } else { 365 };
    while day >= length(year) && year < 9999 {
        day -= length(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    let (day, second) = (day + 1, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Reads a body of at most so many bytes. Some more are read and dropped, so that a client that is
/// still writing gets to read the refusal.
async fn read_body(mut body: Body, most: usize) -> Result<Vec<u8>, ApiError> {
    let (mut all, mut count) = (Vec::new(), 0);
    while count <= most.saturating_mul(8) {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(frame) = frame else {
            break;
        };
        let broken = |_| ApiError::new(ErrorKind::Invalid, "the body broke off");
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        count += data.len();
        match count <= most {
            true => all.extend_from_slice(&data),
            false => all = Vec::new(),
        }
    }
    if count > most {
        let message = format!("the body has more than {most} bytes");
        return Err(ApiError::new(ErrorKind::TooLarge, message));
    }
    Ok(all)
}

/// An error of a response that is not kept.
fn no_response(member: &'static str, id: &str, kind: ErrorKind) -> ApiError {
    let shown: String = id.chars().take(100).collect();
    let message = format!("no response {shown:?} is kept; the oldest ones are forgotten");
    ApiError {
        kind,
        ..ApiError::of(member, message)
    }
}

/// What knows whether the client of a request is there.
fn client_of(request: &Request) -> Option<ClientWatch> {
    request.extensions().get::<ClientWatch>().cloned()
}

fn or_error(path: &str, result: Result<Response, ApiError>) -> Response {
    result.unwrap_or_else(|error| error_response(path, &error))
}

async fn chat(State(service): Shared, request: Request) -> Response {
    or_error("/v1/chat", service.chat(request).await)
}

async fn complete(State(service): Shared, request: Request) -> Response {
    or_error("/v1/completions", service.complete(request).await)
}

async fn embed(State(service): Shared, request: Request) -> Response {
    or_error("/v1/embeddings", service.embed(request).await)
}

async fn respond_to(State(service): Shared, request: Request) -> Response {
    or_error("/v1/responses", service.respond_to(request).await)
}

async fn response(State(service): Shared, id: Result<Path<String>, PathRejection>) -> Response {
    let id = id.map_or_else(|_| "\u{fffd}".to_owned(), |Path(id)| id);
    or_error("/v1/responses", service.response(&id))
}

async fn delete_response(
    State(service): Shared,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let id = id.map_or_else(|_| "\u{fffd}".to_owned(), |Path(id)| id);
    or_error("/v1/responses", service.delete_response(&id))
}

async fn message(State(service): Shared, request: Request) -> Response {
    or_error("/v1/messages", service.message(request).await)
}

async fn count(State(service): Shared, request: Request) -> Response {
    or_error("/v1/messages", service.count(request).await)
}

async fn models(State(service): Shared) -> Response {
    let served = &service.desk.model;
    let adapters = (0..served.adapters.len()).map(Some);
    let all = [None].into_iter().chain(adapters).map(|adapter| {
        let served = Arc::clone(served);
        Service::model(&ChosenModel { served, adapter })
    });
    let last = served.adapters.last().unwrap_or(&served.name);
    let list = json!({
        "object": "list", "data": all.collect::<Vec<Value>>(),
        "has_more": false, "first_id": served.name, "last_id": last,
    });
    json_response(200, &list)
}

async fn model(State(service): Shared, name: Result<Path<String>, PathRejection>) -> Response {
    // What is no UTF-8 is the name of no model.
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
    let chosen = service.desk.choose(Some(&name));
    let shown = chosen.map(|it| json_response(200, &Service::model(&it)));
    or_error("/v1/models", shown)
}

async fn health(State(service): Shared) -> Response {
    let (status, state) = service.health();
    json_response(status, &state)
}

async fn metrics(State(service): Shared) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let text = service.desk.metrics.text(&service.desk.model.name);
    ([(CONTENT_TYPE, kind)], text).into_response()
}

async fn pool(State(service): Shared) -> Response {
    json_response(200, &service.desk.metrics.pool())
}

async fn page() -> Response {
    let headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", PAGE_POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ];
    (headers, PAGE).into_response()
}

async fn unknown(uri: Uri) -> Response {
    let message = "no such path; /v1/chat/completions, /v1/completions, /v1/responses, \
                   /v1/embeddings, /v1/messages, /v1/models, /v1/pool, /health and /metrics are \
                   there";
    error_response(uri.path(), &ApiError::new(ErrorKind::NotFound, message))
}

async fn wrong_method(uri: Uri) -> Response {
    let message = "the path is not for this method";
    error_response(uri.path(), &ApiError::new(ErrorKind::Method, message))
}

async fn guard(State(service): Shared, request: Request, next: Next) -> Response {
    match service.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error_response(request.uri().path(), &error),
    }
}

/// All paths.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/embeddings", post(embed))
        .route("/v1/responses", post(respond_to))
        .route("/v1/responses/{id}", get(response).delete(delete_response))
        .route("/v1/messages", post(message))
        .route("/v1/messages/count_tokens", post(count))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/pool", get(pool))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/", get(page))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&service), guard))
        .with_state(service)
}

#[cfg(test)]
mod tests {
    use super::{is_equal_key, is_own_host, rfc3339};

    #[test]
    fn keys_hosts_and_dates() {
        assert!(is_equal_key(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret", b"secretsecret"] {
            assert!(!is_equal_key(wrong, b"secret"), "{wrong:?}");
        }
        for own in [
            "localhost",
            "localhost:80",
            "127.0.0.1:8",
            "[::1]:1",
            "[::1]",
            "10.0.0.1",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in ["evil.example", "evil.example:80", "localhost.evil:80", ""] {
            assert!(!is_own_host(other), "{other}");
        }
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(rfc3339(1_798_761_600), "2027-01-01T00:00:00Z");
    }
}
