//! Expressions over a session's buffers.
//!
//! Elsewhere: the compiler (`fercuda_jit`), which a session owns (`resources`).

use fercuda_cuda::Stream;
use fercuda_jit::{BoundArg, CompiledExpr, ExprGraph as Expression};
use fercuda_tensor::Layout;

use crate::error::{Error, Result};
use crate::graphs::{Key, Recording};
use crate::session::{BufferEntry, BufferId, Regime, Session};

impl Session {
    /// Compiles an expression, or finds it in memory or on disk: for captures, and for inspection.
    /// [`Session::evaluate`] does this itself.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn compile(&self, expression: &Expression) -> Result<CompiledExpr> {
        let core = &self.core;
        let compiler = core.with(|_| core.owned().compiler(core.context()))?;
        Ok(core.as_tenant(|| compiler.compile(expression))?)
    }

    /// Evaluates an expression over buffers, bound in the order in which its inputs were named,
    /// behind the session's work; into new buffers of the pool, one for each output in the order of
    /// their names.
    ///
    /// # Errors
    /// [`Error::Operand`] if a buffer does not have the input's type, shape and strides;
    /// [`Error::Expression`]; [`Error::Stale`]; [`Error::Limit`]; [`Error::OutOfMemory`];
    /// [`Error::Ended`]; [`Error::Forked`].
    pub fn evaluate(&self, expression: &Expression, inputs: &[BufferId]) -> Result<Vec<BufferId>> {
        // Invalid inputs are reported before outputs are allocated.
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
                // If the session has ended meanwhile, that is the error reported.
                drop(self.free(output));
            }
        }
        done.map(|()| outputs)
    }

    /// Evaluates an expression into existing buffers. An output may be an input only if each
    /// element is computed from the element at the same place.
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

    /// Prepares an evaluation without running it: for captures.
    ///
    /// # Errors
    /// As for [`Session::evaluate`], except those of running it.
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

    /// Resolves the buffers of an expression's inputs or outputs.
    fn operands<'e>(
        &self,
        what: &'static str,
        named: impl ExactSizeIterator<Item = (&'e str, &'e Layout)>,
        ids: &[BufferId],
    ) -> Result<Vec<BufferEntry>> {
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

/// A compiled expression with its buffers, which it retains ([`Session::prepare`]).
#[derive(Debug)]
pub struct Evaluation {
    compiled: CompiledExpr,
    inputs: Vec<BufferEntry>,
    outputs: Vec<BufferEntry>,
}

impl Evaluation {
    /// Captures the evaluation; memory between its kernels belongs to the graph.
    ///
    /// # Errors
    /// [`Error::Graph`]; those of [`Evaluation::run`].
    pub fn record<K: Key>(&self, recording: &Recording<'_, K>) -> Result<()> {
        let bytes = self.compiled.program().scratch_bytes;
        if bytes == 0 {
            return self.run(recording.stream());
        }
        let inputs: Vec<BoundArg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<BoundArg<'_>> = self.outputs.iter().map(bound).collect();
        let scratch = recording.alloc::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let (stream, scratch) = (recording.stream(), BoundArg::of(&*scratch));
        Ok(self.compiled.run_with(stream, &inputs, &outputs, scratch)?)
    }

    /// Queues the evaluation in a stream of the session's context.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Cuda`].
    pub fn run(&self, stream: &Stream) -> Result<()> {
        let inputs: Vec<BoundArg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<BoundArg<'_>> = self.outputs.iter().map(bound).collect();
        Ok(self.compiled.run(stream, &inputs, &outputs)?)
    }
}

fn bound(entry: &BufferEntry) -> BoundArg<'_> {
    BoundArg::of(&entry.memory.buffer).first_at(entry.first)
}
