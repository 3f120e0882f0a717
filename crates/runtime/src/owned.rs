//! What a session owns beside its buffers: graphs by keys, compiled expressions, and
//! dispatchers.
//!
//! Invariants: a session captures streams of its own for that, never the one in which
//! its work is ordered, so no work of another thread gets into a graph. Graphs end with
//! the session, also those that somebody still has a name of. Elsewhere: the cache
//! itself (`graphs`), the compiler (`fercuda_jit`), how a dispatcher is made (`resident`).

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use fercuda_cuda::Stream;
use fercuda_jit::{Arg, Compiled, Compiler, Graph as Expression};
use fercuda_tensor::Layout;

use crate::dispatcher::Queue;
use crate::error::{Error, Result};
use crate::graphs::{
    Budget, GraphCache, GraphStats, Key, RecordOptions, Recorded, Recording, Timing,
};
use crate::machine::lock;
use crate::session::{BufferId, Entry, Regime, Session};

/// What a session ends when it ends.
#[derive(Default)]
pub(crate) struct Owned {
    ends: Mutex<Vec<Weak<dyn Ends>>>,
    compiler: Mutex<Option<Arc<Compiler>>>,
    dispatchers: Mutex<Vec<Weak<Queue>>>,
}

/// What ends with the session, also where somebody still has a name of it.
pub(crate) trait Ends: Send + Sync {
    fn end(&self);
}

impl<K: Key + Send + Sync> Ends for GraphCache<K> {
    fn end(&self) {
        GraphCache::end(self);
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

impl Owned {
    pub(crate) fn keep_until_end(&self, it: Weak<dyn Ends>) {
        let mut all = lock(&self.ends);
        all.retain(|it| it.strong_count() > 0);
        all.push(it);
    }

    pub(crate) fn keep(&self, dispatcher: &Arc<Queue>) {
        let mut all = lock(&self.dispatchers);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(dispatcher));
    }

    /// Tells dispatchers to run what they were given, and end.
    pub(crate) fn tell(&self) {
        for dispatcher in lock(&self.dispatchers).iter().filter_map(Weak::upgrade) {
            dispatcher.tell_to_drain();
        }
    }

    /// Those that there are, for who ends the session.
    pub(crate) fn take_dispatchers(&self) -> Vec<Arc<Queue>> {
        let all = std::mem::take(&mut *lock(&self.dispatchers));
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn end(&self) {
        let ends = std::mem::take(&mut *lock(&self.ends));
        let ends: Vec<Arc<dyn Ends>> = ends.iter().filter_map(Weak::upgrade).collect();
        ends.iter().for_each(|it| it.end());
        let compiler = lock(&self.compiler).take();
        drop(compiler);
    }
}

/// Graphs of a session, by keys, which are replayed in its order. They end with the
/// session; dropping this ends them before, behind their last replay.
///
/// All calls may be made from any thread.
#[derive(Debug)]
pub struct Graphs<K: Key> {
    session: Session,
    cache: Arc<GraphCache<K>>,
    /// Streams that are captured, and idle.
    spare: Mutex<Vec<Stream>>,
}

impl<K: Key + Send + Sync + 'static> Graphs<K> {
    /// Captures what `body` gives to the recording's stream and keeps it under `key`. In
    /// `body` the session is the tenant; its memory, by [`Session::memory`], and kernels,
    /// by [`fercuda_cuda::Launch`], are used as in any stream. If `body` fails or panics,
    /// what was captured is discarded, and what was under the key stays.
    ///
    /// # Errors
    /// Those of `body`; [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn record<R>(
        &self,
        key: K,
        options: RecordOptions,
        body: impl FnOnce(&Recording<'_, K>) -> Result<R>,
    ) -> Result<(R, Recorded)> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        core.acting(|| {
            let spare = lock(&self.spare).pop();
            let stream = match spare {
                Some(stream) => stream,
                None => Stream::new(core.context())?,
            };
            let recorded = self.cache.record(key, &stream, options, body)?;
            lock(&self.spare).push(stream);
            Ok(recorded)
        })
    }

    /// Queues all work of the graph under `key` behind the session's; says whether there
    /// is one.
    ///
    /// # Errors
    /// [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn replay(&self, key: &K) -> Result<bool> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        if core.is_idle() {
            return core.acting(|| Ok(self.cache.replay(key, core.stream())?));
        }
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay(&key, stream)?))
    }

    /// As [`Graphs::replay`], and says how long it took; `None` if there is no graph.
    ///
    /// # Errors
    /// As there.
    pub fn replay_timed(&self, key: &K) -> Result<Option<Timing>> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay_timed(&key, stream)?))
    }

    /// Lets go of the graph under `key`, and of one that is being captured for it; says
    /// whether there was one to replay.
    pub fn invalidate(&self, key: &K) -> bool {
        self.cache.invalidate(key)
    }

    /// Lets go of all graphs; says how many there were.
    pub fn invalidate_all(&self) -> usize {
        self.cache.invalidate_all()
    }

    /// Lets go of all graphs of a generation; says how many there were.
    pub fn invalidate_generation(&self, generation: u64) -> usize {
        self.cache.invalidate_generation(generation)
    }

    /// Whether there is a graph under `key`.
    pub fn contains(&self, key: &K) -> bool {
        self.cache.contains(key)
    }

    /// What there is and has been done.
    pub fn stats(&self) -> GraphStats {
        self.cache.stats()
    }
}

impl Session {
    /// A cache of graphs, which is the session's: what its captures allocate is within
    /// the session's limit, beside the budget.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn graphs<K: Key + Send + Sync + 'static>(&self, budget: Budget) -> Result<Graphs<K>> {
        let core = &self.core;
        let cache = core.acting(|| GraphCache::of_account(core.context(), budget, core.account()));
        let cache = Arc::new(cache?);
        // Under the table's lock, so that the session does not end in between.
        core.with(|_| {
            core.owned().keep_until_end(Arc::downgrade(&cache) as _);
            Ok(())
        })?;
        Ok(Graphs {
            session: self.clone(),
            cache,
            spare: Mutex::default(),
        })
    }

    /// An expression ready to run, from memory or the disk if it is known: for captures,
    /// and to look at. [`Session::evaluate`] does it by itself.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn compile(&self, expression: &Expression) -> Result<Compiled> {
        let core = &self.core;
        let compiler = core.with(|_| {
            let mut compiler = lock(&core.owned().compiler);
            Ok(match &*compiler {
                Some(compiler) => compiler.clone(),
                None => compiler
                    .insert(Arc::new(Compiler::new(core.context())?))
                    .clone(),
            })
        })?;
        Ok(core.acting(|| compiler.compile(expression))?)
    }

    /// Computes an expression over buffers, bound in the order in which its inputs were
    /// named, behind the session's work; into new buffers of the pool, one for each output
    /// in the order of their names.
    ///
    /// # Errors
    /// [`Error::Operand`] if a buffer has not the input's type, shape and strides;
    /// [`Error::Expression`]; [`Error::Stale`]; [`Error::Limit`]; [`Error::OutOfMemory`];
    /// [`Error::Ended`]; [`Error::Forked`].
    pub fn evaluate(&self, expression: &Expression, inputs: &[BufferId]) -> Result<Vec<BufferId>> {
        // What is wrong with the inputs is said before there is memory for outputs.
        self.operands("input", expression.inputs(), inputs)?;
        let layouts: Vec<Layout> = expression.outputs().map(|(_, layout)| *layout).collect();
        let mut outputs = Vec::with_capacity(layouts.len());
        let made = layouts.into_iter().try_for_each(|layout| {
            outputs.push(self.alloc(layout, Regime::Pool)?);
            Ok(())
        });
        let done = made.and_then(|()| self.evaluate_into(expression, inputs, &outputs));
        if done.is_err() {
            for output in outputs.drain(..) {
                // That the session has ended meanwhile is what is told.
                drop(self.free(output));
            }
        }
        done.map(|()| outputs)
    }

    /// The same into buffers that there are, which may be inputs only where each element
    /// is computed from that in its place.
    ///
    /// # Errors
    /// As for [`Session::evaluate`].
    pub fn evaluate_into(
        &self,
        expression: &Expression,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<()> {
        let ready = self.prepare(expression, inputs, outputs)?;
        self.core.in_order(move |stream| ready.run(stream))
    }

    /// The same without running it: for captures.
    ///
    /// # Errors
    /// As for [`Session::evaluate`], but for those of running it.
    pub fn prepare(
        &self,
        expression: &Expression,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<Evaluation> {
        Ok(Evaluation {
            inputs: self.operands("input", expression.inputs(), inputs)?,
            outputs: self.operands("output", expression.outputs(), outputs)?,
            compiled: self.compile(expression)?,
        })
    }

    /// The buffers of an expression's inputs or outputs.
    fn operands<'e>(
        &self,
        what: &'static str,
        named: impl ExactSizeIterator<Item = (&'e str, &'e Layout)>,
        ids: &[BufferId],
    ) -> Result<Vec<Entry>> {
        if named.len() != ids.len() {
            let (wanted, given) = (named.len(), ids.len());
            return Err(fercuda_jit::Error::Count {
                what,
                wanted,
                given,
            }
            .into());
        }
        let find = |((name, layout), id): ((&str, &Layout), &BufferId)| {
            let entry = self.core.entry(*id)?;
            if entry.layout != *layout {
                return Err(Error::Operand {
                    what,
                    name: name.to_owned(),
                    layout: Box::new(*layout),
                    id: id.to_string(),
                    given: Box::new(entry.layout),
                });
            }
            Ok(entry)
        };
        named.zip(ids).map(find).collect()
    }
}

/// An expression that is compiled, and its buffers, which it holds
/// ([`Session::prepare`]).
#[derive(Debug)]
pub struct Evaluation {
    compiled: Compiled,
    inputs: Vec<Entry>,
    outputs: Vec<Entry>,
}

impl Evaluation {
    /// Captures it; memory between its kernels is the graph's.
    ///
    /// # Errors
    /// [`Error::Graph`]; those of [`Evaluation::run`].
    pub fn record<K: Key>(&self, recording: &Recording<'_, K>) -> Result<()> {
        let bytes = self.compiled.program().scratch_bytes;
        if bytes == 0 {
            return self.run(recording.stream());
        }
        let inputs: Vec<Arg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<Arg<'_>> = self.outputs.iter().map(bound).collect();
        let scratch = recording.alloc::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let (stream, scratch) = (recording.stream(), Arg::of(&*scratch));
        Ok(self.compiled.run_with(stream, &inputs, &outputs, scratch)?)
    }

    /// Queues it in a stream of the session's context.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Cuda`].
    pub fn run(&self, stream: &Stream) -> Result<()> {
        let inputs: Vec<Arg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<Arg<'_>> = self.outputs.iter().map(bound).collect();
        Ok(self.compiled.run(stream, &inputs, &outputs)?)
    }
}

fn bound(entry: &Entry) -> Arg<'_> {
    Arg::of(&entry.memory.buffer).first_at(entry.first)
}
