//! Socket and threads of a server, and its end.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::answer::{AnswerDesk, ServedModel};
use crate::client_watch::ClientWatch;
use crate::connection::{ConnectionPatience, HealthReply, LimitedListener, WatchedConnection};
use crate::engine_loop::EngineLoop;
use crate::grammars::GrammarDesk;
use crate::metrics::ServerMetrics;
use crate::service::{AnswerNumbers, Service, router};
use crate::token_engine::TokenEngine;

/// Connections that the system keeps until they are accepted, if it allows as many.
const BACKLOG: i32 = 4096;

/// What a server is opened with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens; port 0 for a free one.
    pub address: SocketAddr,
    /// Key that requests have to send.
    pub api_key: Option<String>,
    /// Requests that the engine runs at once.
    pub running: usize,
    /// Requests that may wait besides.
    pub queue: usize,
    /// Most connections; further ones get status 503.
    pub connections: usize,
    /// Longest time until the head of a request is there, also of the next one of a connection.
    pub head_time: Duration,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Longest time of a body.
    pub body_time: Duration,
    /// Longest time of a request.
    pub time_out: Duration,
    /// Longest time in which a client reads nothing of an answer.
    pub write_time: Duration,
}

impl ServerConfig {
    /// Defaults at an address.
    pub fn at(address: SocketAddr) -> ServerConfig {
        ServerConfig {
            address,
            api_key: None,
            running: 8,
            queue: 128,
            connections: 1024,
            head_time: Duration::from_secs(15),
            body_bytes: 4 << 20,
            body_time: Duration::from_secs(30),
            time_out: Duration::from_secs(600),
            write_time: Duration::from_secs(60),
        }
    }
}

/// Why a server did not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("cannot listen at {address}: {cause}\ntry: another --port, or --port 0 for a free one")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// Threads or sockets failed.
    #[error("the server failed: {0}")]
    Io(#[from] io::Error),
    /// The HTTP thread panicked.
    #[error("the HTTP thread panicked")]
    Panic,
}

/// How far a server is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StopState {
    Serving,
    /// Running requests end, new ones are refused.
    Finishing,
    /// Running requests are cancelled.
    Now,
}

/// Stops a server, from any thread.
#[derive(Clone, Debug)]
pub struct ServerStop {
    state: Arc<watch::Sender<StopState>>,
    /// Handlers look here.
    stops: Arc<AtomicBool>,
}

impl ServerStop {
    /// Refuses new requests and lets those that run end.
    pub fn stop(&self) {
        self.raise(StopState::Finishing);
    }

    /// Cancels requests that run, too.
    pub fn stop_now(&self) {
        self.raise(StopState::Now);
    }

    fn raise(&self, to: StopState) {
        self.stops.store(true, Ordering::Relaxed);
        self.state.send_modify(|state| *state = to.max(*state));
    }
}

/// A server whose socket is open.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    listener: TcpListener,
    address: SocketAddr,
    stop: ServerStop,
}

impl Server {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`ServerError::Bind`].
    pub fn bind(config: ServerConfig) -> Result<Server, ServerError> {
        let address = config.address;
        let refused = |cause| ServerError::Bind { address, cause };
        let listener = TcpListener::bind(address).map_err(refused)?;
        // The standard library's 128 are few where many clients come at once.
        rustix::net::listen(&listener, BACKLOG).map_err(io::Error::from)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = ServerStop {
            state: Arc::new(watch::Sender::new(StopState::Serving)),
            stops: Arc::new(AtomicBool::new(false)),
        };
        Ok(Server {
            config,
            listener,
            address,
            stop,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What stops it.
    pub fn stopper(&self) -> ServerStop {
        self.stop.clone()
    }

    /// Serves until it is stopped. The engine stays in this thread.
    ///
    /// # Errors
    /// [`ServerError::Io`] of threads and sockets.
    pub fn run(self, engine: &mut impl TokenEngine, model: ServedModel) -> Result<(), ServerError> {
        let (submissions, received) = mpsc::channel();
        let metrics = Arc::new(ServerMetrics::new());
        let model = Arc::new(model);
        let config = &self.config;
        let places = config.running.saturating_add(config.queue);
        let desk = AnswerDesk {
            model: Arc::clone(&model),
            metrics: Arc::clone(&metrics),
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            submissions,
            time_out: config.time_out,
            grammars: GrammarDesk::new(),
        };
        let service = Service {
            desk,
            key: config.api_key.clone(),
            body_bytes: config.body_bytes,
            body_time: config.body_time,
            checks_host: config.api_key.is_none() && self.address.ip().is_loopback(),
            stops: Arc::clone(&self.stop.stops),
            numbers: AnswerNumbers::default(),
            responses: Arc::default(),
        };
        let name = "fercuda-http".to_owned();
        let http = std::thread::Builder::new().name(name);
        let http = http.spawn(move || self.serve_http(service))?;
        EngineLoop::new(engine, &model.tokenizer, &metrics).run(&received);
        http.join().map_err(|_| ServerError::Panic)??;
        Ok(())
    }

    fn serve_http(self, service: Service) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(4)
            .thread_name("fercuda-http")
            .enable_io()
            .enable_time()
            .build()?;
        let result = runtime.block_on(self.accept(Arc::new(service)));
        // Connections that are left are closed, and their requests cancelled.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    async fn accept(self, service: Arc<Service>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let patience = ConnectionPatience {
            write: self.config.write_time,
            idle: self.config.time_out + Duration::from_secs(60),
        };
        let asked = Arc::clone(&service);
        let health = HealthReply(Box::new(move || {
            let (status, state) = asked.health();
            (status, state.to_string())
        }));
        let listener = LimitedListener::new(listener, self.config.connections, patience, health);
        let router = router(service);
        let mut connections = JoinSet::new();
        let mut finishing = pin!(reached(self.stop.state.subscribe(), StopState::Finishing));
        loop {
            tokio::select! {
                connection = listener.accept() => {
                    let states = self.stop.state.subscribe();
                    let router = router.clone();
                    let served = serve_connection(connection, router, states, self.config.head_time);
                    connections.spawn(served);
                }
                Some(_) = connections.join_next() => {}
                () = &mut finishing => break,
            }
        }
        drop(listener);
        let last = self.config.time_out + Duration::from_secs(5);
        tokio::select! {
            () = async { while connections.join_next().await.is_some() {} } => {}
            () = reached(self.stop.state.subscribe(), StopState::Now) => {}
            () = tokio::time::sleep(last) => {}
        }
        // Connections that are left are closed.
        Ok(())
    }
}

/// Waits until a server is to stop that far.
async fn reached(mut states: watch::Receiver<StopState>, state: StopState) {
    // Without a sender there is no server any more.
    let _ = states.wait_for(|it| *it >= state).await;
}

/// Serves a connection until it ends. Of a server that stops, one that has had no request yet ends
/// at once, any other behind its request.
async fn serve_connection(
    connection: WatchedConnection,
    router: Router,
    states: watch::Receiver<StopState>,
    head_time: Duration,
) {
    let has_begun = Arc::new(AtomicBool::new(false));
    let service = ConnectionService {
        client: connection.client(),
        router: TowerToHyperService::new(router),
        has_begun: Arc::clone(&has_begun),
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .serve_connection(TokioIo::new(connection), service);
    let mut connection = pin!(connection);
    // An error of a connection is its client's: it has gone, or is no client of HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = reached(states, StopState::Finishing) => {}
    }
    if has_begun.load(Ordering::Relaxed) {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// What answers the requests of a connection.
struct ConnectionService {
    client: ClientWatch,
    router: TowerToHyperService<Router>,
    has_begun: Arc<AtomicBool>,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response;
    type Error = Infallible;
    type Future =
        <TowerToHyperService<Router> as hyper::service::Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.has_begun.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(self.client.clone());
        self.router.call(request)
    }
}
