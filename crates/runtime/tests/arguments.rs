//! Argument blocks of a session: setting, pushing and dropping them beside work that waits.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and one forks"
)]

mod bench;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bench::Bench;
use fercuda_runtime::{
    BlockLayout, Dtype, Error, Field, GraphError, Regime, Session, SessionArguments,
};

const LONG: Duration = Duration::from_secs(60);
/// Pushes that may be in flight.
const PUSHES: usize = 4;

fn block(session: &Session) -> (SessionArguments, Field<u32>) {
    let mut layout = BlockLayout::new();
    let token = layout.field::<u32>("token");
    (session.arguments(layout, PUSHES).unwrap(), token)
}

/// Blocks the session's stream until the returned sender sends, or is dropped.
fn held_back(session: &Session) -> std::sync::mpsc::Sender<()> {
    let (go_on, wait) = channel::<()>();
    let hold = move || {
        wait.recv_timeout(LONG).ok();
    };
    session.stream().host_callback(hold).unwrap();
    go_on
}

#[test]
fn host_function_sets_values_while_a_push_waits_for_it() {
    let bench = Bench::new();
    let session = bench.session("ahead");
    let (arguments, token) = block(&session);
    let arguments = Arc::new(arguments);
    let (sets, begun) = (arguments.clone(), Arc::new(AtomicU32::new(0)));
    let pushes = begun.clone();
    let (is_set, set) = channel();
    session
        .stream()
        .host_callback(move || {
            // By then the host waits in one of the pushes for this function, or gets there while it
            // sets values.
            let begins = Instant::now();
            while pushes.load(SeqCst) == 0 && begins.elapsed() < LONG {
                std::thread::yield_now();
            }
            let done = (0..50_000).try_for_each(|value| sets.set_at(token, 0, value));
            is_set.send(done).unwrap();
        })
        .unwrap();
    let pushing = {
        let arguments = arguments.clone();
        std::thread::spawn(move || {
            for _ in 0..4 * PUSHES {
                begun.fetch_add(1, SeqCst);
                arguments.push().unwrap();
            }
        })
    };
    let Ok(done) = set.recv_timeout(LONG) else {
        // Joining them would block as well.
        std::mem::forget((session, arguments));
        panic!("the function waits for a push, and the push for the function");
    };
    done.unwrap();
    pushing.join().unwrap();
    arguments.set_at(token, 0, 7).unwrap();
    arguments.push().unwrap();
    let field = arguments.field(token).unwrap();
    assert_eq!(session.download::<u32>(field).unwrap(), [7]);
    session.close().unwrap();
}

#[test]
fn block_is_pool_memory_and_its_drop_never_waits() {
    let bench = Bench::new();
    let session = bench.session("pooled");
    let (arguments, token) = block(&session);
    let whole = arguments.whole();
    assert_eq!(session.regime(whole).unwrap(), Regime::Pool);
    let of_pool = |name: &str| {
        let holders = bench.runtime.holders();
        let it = holders.iter().find(|it| it.tenant == name);
        it.map_or(0, |it| it.pooled_bytes)
    };
    assert_eq!(of_pool("pooled"), session.held_bytes());
    arguments.set_at(token, 0, 3).unwrap();
    // Values pushed behind unfinished work are released before that work ends.
    let go_on = held_back(&session);
    arguments.push().unwrap();
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    let (is_gone, gone) = channel();
    let dropping = std::thread::spawn(move || {
        drop(arguments);
        is_gone.send(ended.load(SeqCst)).unwrap();
    });
    // A thread that waits all the same does so for as long as the other work takes.
    let waited = gone.recv_timeout(Duration::from_secs(20)).unwrap_or(true);
    has_ended.store(true, SeqCst);
    go_on.send(()).unwrap();
    dropping.join().unwrap();
    assert!(!waited, "it has waited for the stream");
    session.close().unwrap();
}

#[test]
fn field_is_a_buffer_of_its_type() {
    let bench = Bench::new();
    let session = bench.session("typed");
    let mut layout = BlockLayout::new();
    let one = layout.field::<u32>("one");
    let wide = layout.array::<f64>("wide", 3);
    let arguments = session.arguments(layout, PUSHES).unwrap();
    let lies = |id| *session.layout(id).unwrap().shape().first().unwrap_or(&1);
    let of = |id| session.layout(id).unwrap().dtype();
    let (first, second) = (
        arguments.field(one).unwrap(),
        arguments.field(wide).unwrap(),
    );
    assert_eq!((of(first), lies(first)), (Dtype::U32, 1));
    assert_eq!((of(second), lies(second)), (Dtype::F64, 3));
    let mut other = BlockLayout::new();
    let foreign = other.field::<f64>("one");
    for refused in [
        arguments.field(foreign).unwrap_err(),
        arguments.set_at(foreign, 0, 1.0).unwrap_err(),
        arguments.set_at(wide, 3, 1.0).unwrap_err(),
    ] {
        let Error::Graph(error) = &refused else {
            panic!("{refused}");
        };
        assert!(matches!(**error, GraphError::Field { .. }), "{refused}");
    }
    session.close().unwrap();
    let ended = arguments.set_at(one, 0, 1).unwrap_err();
    assert!(matches!(ended, Error::Ended { .. }), "{ended}");
    assert!(matches!(arguments.push().unwrap_err(), Error::Ended { .. }));
}

#[test]
fn forked_child_drops_a_block_that_a_push_of_the_parent_holds() {
    let bench = Bench::new();
    let session = bench.session("forked");
    let (arguments, _) = block(&session);
    let go_on = held_back(&session);
    let (pushed, begins) = (AtomicU32::new(0), Barrier::new(2));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            begins.wait();
            for _ in 0..4 * PUSHES {
                arguments.push().unwrap();
                pushed.fetch_add(1, SeqCst);
            }
        });
        begins.wait();
        // The ring has a quarter more slots than pushes; then one waits. If it does not yet, this
        // test shows nothing, and passes.
        while pushed.load(SeqCst) < PUSHES as u32 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the child calls nothing but this library and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no other code of this process uses it any more, which exits at once.
            drop(unsafe { std::ptr::read(&arguments) });
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let begun = Instant::now();
        let mut status = -1;
        // SAFETY: the child that was made above; `status` outlives the call.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if begun.elapsed() > LONG {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        go_on.send(()).unwrap();
        assert_eq!(status, 0, "the child waits for a thread that it has not");
    });
    drop(arguments);
    session.close().unwrap();
}
