//! An engine that says again what it was given, a server over it, and a client.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fercuda_grammar::TokenGrammar;
use fercuda_server::{
    EmbedError, EngineLoad, EngineMemory, GeneratedToken, ServedModel, Server, ServerConfig,
    ServerError, ServerStop, TokenChance, TokenEngine, TokenFinish, TokenRequest,
};
use fercuda_tokenizer::{ChatTemplate, Tokenizer};
use serde_json::Value;

pub(crate) const CONTEXT: u64 = 40_000;
/// Names of the model's adapters.
pub(crate) const ADAPTERS: [&str; 2] = ["poet", "lawyer"];
const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim \
    + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What a test sees and sets of an engine.
#[derive(Debug, Default)]
pub(crate) struct EchoState {
    /// Duration of a step.
    pub(crate) pause: Duration,
    /// Whether it begins again at the prompt's end, instead of ending.
    pub(crate) repeats: bool,
    /// Whether the next step fails.
    pub(crate) fails: bool,
    pub(crate) submitted: usize,
    pub(crate) ended: usize,
    pub(crate) cancelled: usize,
    pub(crate) live: usize,
    /// The last prompt.
    pub(crate) prompt: Vec<u32>,
    /// The last request.
    pub(crate) request: Option<TokenRequest>,
    /// Likeliest tokens that are reported, if not others.
    pub(crate) top: Vec<TokenChance>,
    /// Whether end tokens within the prompt end an answer.
    pub(crate) has_ends: bool,
    /// Whether grammars lead nowhere.
    pub(crate) sticks: bool,
    /// Elements of vectors, of a server that makes them.
    pub(crate) embedding: Option<u64>,
    /// Texts of the last request for vectors.
    pub(crate) texts: Vec<Vec<u32>>,
    /// Tokens that are the answer, if not the prompt.
    pub(crate) answer: Option<Vec<u32>>,
}

/// An engine whose answer is the prompt.
struct EchoEngine {
    state: Arc<Mutex<EchoState>>,
    requests: BTreeMap<u64, (TokenRequest, usize)>,
    next: u64,
}

impl EchoEngine {
    fn state(&self) -> MutexGuard<'_, EchoState> {
        self.state.lock().unwrap()
    }
}

impl TokenEngine for EchoEngine {
    type Id = u64;

    fn submit(&mut self, request: TokenRequest) -> Result<u64, String> {
        if request.tokens.is_empty() {
            return Err("a prompt without tokens".to_owned());
        }
        let id = self.next;
        self.next += 1;
        self.state().submitted += 1;
        self.state().prompt.clone_from(&request.tokens);
        self.state().request = Some(request.clone());
        self.requests.insert(id, (request, 0));
        self.state().live = self.requests.len();
        Ok(id)
    }

    fn cancel(&mut self, request: u64) {
        if self.requests.remove(&request).is_some() {
            self.state().cancelled += 1;
        }
        self.state().live = self.requests.len();
    }

    fn step(&mut self) -> Result<Vec<GeneratedToken<u64>>, String> {
        let (pause, repeats, fails) = {
            let mut state = self.state();
            (state.pause, state.repeats, std::mem::take(&mut state.fails))
        };
        let own_top = self.state().top.clone();
        let answer = self.state().answer.clone();
        let has_ends = self.state().has_ends;
        let sticks = self.state().sticks;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        if fails {
            return Err("the device is gone".to_owned());
        }
        let mut chosen = Vec::new();
        // As many as run at once.
        for (id, (request, done)) in self.requests.iter_mut().take(4) {
            let prompt = answer.as_ref().unwrap_or(&request.tokens);
            let end = request.end_tokens.first().copied();
            if let Some(grammar) = &mut request.grammar {
                let wanted = prompt.get(*done).copied();
                *done += 1;
                let mut token = follow(grammar, wanted, *id, request.end_tokens.first().copied());
                if sticks {
                    token.finished = Some(TokenFinish::GrammarStuck);
                }
                token.finished = token
                    .finished
                    .or_else(|| (*done >= request.max_tokens).then_some(TokenFinish::Length));
                chosen.push(token);
                continue;
            }
            let own = prompt[*done % prompt.len()];
            let is_stop = has_ends && request.end_tokens.contains(&own);
            let is_over = *done >= prompt.len() && !repeats && end.is_some() || is_stop;
            let token = match (is_stop, end) {
                (false, Some(end)) if is_over => end,
                _ => own,
            };
            *done += 1;
            let finished = match (is_over, *done >= request.max_tokens) {
                (true, _) => Some(TokenFinish::End),
                (false, true) => Some(TokenFinish::Length),
                (false, false) => None,
            };
            let top = (0..request.top.unwrap_or(0) as u32).map(|it| (100 + it, -1.0 - it as f32));
            chosen.push(GeneratedToken {
                request: *id,
                token,
                log_probability: request.top.map(|_| -0.5),
                top: match own_top.is_empty() || request.top.is_none() {
                    true => top.collect(),
                    false => own_top.clone(),
                },
                cached_tokens: Some(request.tokens.len() / 16 * 16),
                finished,
            });
        }
        for token in chosen.iter().filter(|it| it.finished.is_some()) {
            self.requests.remove(&token.request);
            self.state().ended += 1;
        }
        self.state().live = self.requests.len();
        Ok(chosen)
    }

    /// Vectors whose elements are the sum of a text's tokens and the numbers behind it.
    fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let (width, fails) = {
            let mut state = self.state();
            state.texts = texts.to_vec();
            (
                state.embedding.unwrap_or(0),
                std::mem::take(&mut state.fails),
            )
        };
        if fails {
            return Err(EmbedError::Failed("the device is gone".to_owned()));
        }
        if texts.iter().flatten().any(|it| *it > 9000) {
            return Err(EmbedError::Refused("a token of another model".to_owned()));
        }
        let vector = |text: &Vec<u32>| {
            let sum: u32 = text.iter().sum();
            (0..width).map(|at| (u64::from(sum) + at) as f32).collect()
        };
        Ok(texts.iter().map(vector).collect())
    }

    fn figures(&self) -> EngineLoad {
        let running = self.requests.len().min(4);
        EngineLoad {
            running,
            waiting: self.requests.len() - running,
            free_blocks: 8 - running,
            blocks: 8,
            kept_blocks: 3,
            ..EngineLoad::default()
        }
    }

    fn memory(&self) -> Option<EngineMemory> {
        Some(EngineMemory {
            held: 300,
            block: 10,
            free: 500,
            total: 1000,
        })
    }
}

/// The next token of a text that follows a grammar: the wanted one, if it may follow; else an end,
/// or what ends a value of JSON soon.
fn follow(
    grammar: &mut TokenGrammar,
    wanted: Option<u32>,
    request: u64,
    end: Option<u32>,
) -> GeneratedToken<u64> {
    let own = tokenizer();
    let failed = |finished| GeneratedToken {
        request,
        token: 0,
        log_probability: None,
        top: Vec::new(),
        cached_tokens: None,
        finished: Some(finished),
    };
    let Ok(allowed) = grammar.allowed() else {
        return failed(TokenFinish::GrammarStuck);
    };
    let byte = |byte: u8| (0..600).find(|it| own.token_bytes(*it) == [byte]);
    let ends = ['"', '}', ']', '1', 'e'].map(|it| byte(it as u8));
    let preferred = [wanted, end].into_iter().chain(ends).flatten();
    let token = preferred.chain(0..600).find(|it| allowed.has(*it)).unwrap();
    let finished = match (grammar.accept(token), Some(token) == end) {
        (Ok(_), true) => Some(TokenFinish::End),
        (Ok(true), _) => Some(TokenFinish::GrammarEnd),
        (Ok(false), _) => None,
        (Err(_), _) => return failed(TokenFinish::GrammarStuck),
    };
    GeneratedToken {
        token,
        finished,
        ..failed(TokenFinish::End)
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenizer/tests/references");
    let file = std::fs::read(file.join("bytes.json")).unwrap();
    Tokenizer::from_json(&file).unwrap()
}

/// A server that runs.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) stop: ServerStop,
    state: Arc<Mutex<EchoState>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl TestServer {
    pub(crate) fn start() -> TestServer {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
        Self::with_template(CHATML, change)
    }

    pub(crate) fn with_template(
        template: &str,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        Self::serving(template, None, change)
    }

    /// One whose model makes vectors of so many elements.
    pub(crate) fn embedding(elements: u64) -> TestServer {
        let server = Self::serving(CHATML, Some(elements), |_| {});
        server.state().embedding = Some(elements);
        server
    }

    fn serving(
        template: &str,
        embedding: Option<u64>,
        change: impl FnOnce(&mut ServerConfig),
    ) -> TestServer {
        let mut config = ServerConfig::at((Ipv4Addr::LOCALHOST, 0).into());
        config.running = 4;
        change(&mut config);
        let server = Server::bind(config).unwrap();
        let (address, stop) = (server.address(), server.stopper());
        let state = Arc::new(Mutex::new(EchoState::default()));
        let mut engine = EchoEngine {
            state: Arc::clone(&state),
            requests: BTreeMap::new(),
            next: 0,
        };
        let tokenizer = tokenizer();
        let model = ServedModel {
            name: "echo".to_owned(),
            template: Some(ChatTemplate::new(template, &tokenizer).unwrap()),
            tokenizer,
            context: CONTEXT,
            created: 0,
            embedding,
            adapters: ADAPTERS.map(str::to_owned).to_vec(),
        };
        let thread = std::thread::spawn(move || server.run(&mut engine, model));
        TestServer {
            address,
            stop,
            state,
            thread: Some(thread),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EchoState> {
        self.state.lock().unwrap()
    }

    /// Sends a request, and leaves its answer to be read.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let host = self.address;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> HttpReply {
        HttpReply::read(self.send("POST", path, "", &body.to_string()))
    }

    pub(crate) fn get(&self, path: &str) -> HttpReply {
        HttpReply::read(self.send("GET", path, "", ""))
    }

    /// Waits until the engine has nothing.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_until(|state| state.live == 0);
    }

    pub(crate) fn wait_until(&self, is_done: impl Fn(&EchoState) -> bool) {
        let begun = Instant::now();
        while !is_done(&self.state()) {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", self.state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Value of a counter or gauge.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|it| it.starts_with(name));
        let value = line.and_then(|it| it.rsplit_once(' ')).unwrap().1;
        value.parse().unwrap()
    }

    /// Waits for the end of a server that was stopped.
    pub(crate) fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.stop_now();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.unwrap().is_ok());
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpReply {
    pub(crate) fn read(mut stream: TcpStream) -> HttpReply {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        Self::of(&all).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&all)))
    }

    /// The answer in these bytes, if it is complete.
    pub(crate) fn of(all: &[u8]) -> Option<HttpReply> {
        let end = all.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
        let head = String::from_utf8(all[..end].to_vec()).ok()?;
        let status = head.get(9..12)?.parse().ok()?;
        let mut rest = &all[end..];
        let mut body = Vec::new();
        if !head.contains("transfer-encoding: chunked") {
            body = rest.to_vec();
            return Some(HttpReply { status, head, body });
        }
        loop {
            let line = rest.windows(2).position(|it| it == b"\r\n")?;
            let size = std::str::from_utf8(&rest[..line]).ok()?;
            let size = usize::from_str_radix(size, 16).ok()?;
            if size == 0 {
                return Some(HttpReply { status, head, body });
            }
            body.extend(rest.get(line + 2..line + 2 + size)?);
            rest = rest.get(line + 2 + size + 2..)?;
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    /// The JSON of a stream's events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|it| it.strip_prefix("data: "));
        let data = data.filter(|it| *it != "[DONE]");
        data.map(|it| serde_json::from_str(it).unwrap()).collect()
    }
}
