//! How fast a run is with less memory or more: the fastest plan at budgets from the smallest that is enough to the smallest
//! that is as good as any, and what a little more memory would gain.

use crate::request::{PlanError, Request};
use crate::search::{Found, can_fit, search, shortest_step};
use plimsoll_graph::MemoryId;
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;

/// The fastest plan at a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct CurvePoint {
    /// Of the device.
    pub budget: Bytes,
    /// Its plan.
    pub found: Found,
}

/// A step that is longer than the shortest by this factor is as good: larger micro-batches gain less for ten times the memory.
const AS_GOOD: f64 = 1.005;

/// Points at `count` budgets of the device, ascending: the smallest that is enough, the smallest whose step is as good as the
/// shortest, both to a thousandth, and even steps between. Errors: the request makes no sense. Empty if nothing fits.
pub fn curve(request: &Request, count: u64) -> Result<Vec<CurvePoint>, PlanError> {
    // Room that no plan uses; sums of it stay far from the largest number.
    let roomy = Bytes(u64::MAX >> 8);
    let Some(fastest) = within(request, roomy)? else { return Ok(Vec::new()) };
    let largest = fastest.plan.peak().0;
    let enough = least(largest, |device| can_fit(&with(request, device)))?;
    let is_as_good = |step: Seconds| step.0 <= AS_GOOD * fastest.step.0;
    let most = least(largest, |device| Ok(shortest_step(&with(request, device))?.is_some_and(is_as_good)))?;
    let budgets = (0..count).map(|part| Bytes(enough + (most - enough) * part / (count - 1).max(1)));
    let points = budgets.collect::<Vec<_>>().into_par_iter().map(|budget| {
        let found = within(request, budget)?;
        Ok(found.map(|found| CurvePoint { budget, found }))
    });
    Ok(points.collect::<Result<Vec<_>, PlanError>>()?.into_iter().flatten().collect())
}

/// How much shorter the step of a plan is with `more` bytes of the device. Errors: the request makes no sense.
pub fn saved_with_more(request: &Request, found: &Found, more: Bytes) -> Result<Seconds, PlanError> {
    let more = Bytes(request.budget.device().0.saturating_add(more.0));
    let step = shortest_step(&with(request, more))?.unwrap_or(found.step);
    Ok(Seconds((found.step.0 - step.0).max(0.0)))
}

/// The smallest number of bytes that will do, to a thousandth. `largest` will do.
fn least(largest: u64, will_do: impl Fn(Bytes) -> Result<bool, PlanError>) -> Result<u64, PlanError> {
    let (mut short, mut enough) = (0, largest);
    while enough - short > enough >> 10 {
        let middle = short + (enough - short) / 2;
        if will_do(Bytes(middle))? { enough = middle } else { short = middle }
    }
    Ok(enough)
}

fn within(request: &Request, device: Bytes) -> Result<Option<Found>, PlanError> {
    Ok(search(&with(request, device))?.ok())
}

/// The request with this budget of the device.
fn with(request: &Request, device: Bytes) -> Request {
    Request { budget: request.budget.with(MemoryId::DEVICE, device), ..request.clone() }
}
