//! Ops of adapters in a step: what they add to the products of its tokens.

use fercuda_ops::OpDescriptor;

use crate::adapter_targets::AdaptedPlace;
use crate::adapters::StepAdapters;
use crate::error::LlmError;
use crate::recorder::DeviceTensor;
use crate::step_ops::{StepRecorder, of_shape};

type Result<T> = std::result::Result<T, LlmError>;

impl StepRecorder<'_> {
    /// Adds to products of x what the adapters of its tokens change, where these have some.
    pub(crate) fn adapt(
        &mut self,
        x: &DeviceTensor,
        place: (usize, AdaptedPlace),
        results: &[&DeviceTensor],
    ) -> Result<()> {
        let Some(StepAdapters { pool, numbers }) = &self.adapters else {
            return Ok(());
        };
        let (pool, numbers) = (*pool, numbers.clone());
        let Some(group) = pool.group(place) else {
            return Ok(());
        };
        let tokens = x.shape()[0];
        let rows = group.a.rows;
        let low = of_shape(&pool.low, &[tokens, 1, rows])?;
        let product = || OpDescriptor::new("expert_linear");
        self.add(product()?, &[x, &group.a.tensor, &numbers], &[&low])?;
        let low = low.reshape(&[tokens, rows])?;
        for (number, result) in results.iter().enumerate() {
            let width = group.target.width(number);
            let added = of_shape(&pool.added, &[tokens, width])?;
            let parts = group.target.parts.iter().zip(&group.b);
            for (part, b) in parts.filter(|(it, _)| it.result == number) {
                let first = part.module as u64 * pool.rank;
                let from = low.columns(first..first + pool.rank)?;
                let to = added.columns(part.first..part.first + part.outputs)?;
                let to = to.reshape(&[tokens, 1, part.outputs])?;
                self.add(product()?, &[&from, &b.tensor, &numbers], &[&to])?;
            }
            let own = result.columns(0..width)?;
            self.accumulate(&own, &added)?;
        }
        Ok(())
    }
}
