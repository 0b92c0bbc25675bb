//! How fast a run is with less memory or more: the fastest plan at budgets from the least that is enough to the most that is
//! of use, and what a little more than there is would buy.

use crate::budget::Budget;
use crate::request::{PlanError, Request};
use crate::search::{Found, search};
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

/// Points at so many budgets of the device, ascending: the least that is enough (to a thousandth of the most), the most that is of
/// use, and even steps between. Errors: the request makes no sense. Empty if nothing fits in any.
pub fn curve(request: &Request, count: u64) -> Result<Vec<CurvePoint>, PlanError> {
    // Room that no plan uses; sums of it stay far from the largest number.
    let roomy = Bytes(u64::MAX >> 8);
    let Some(most) = within(request, roomy)?.map(|found| found.plan.peak_bytes) else { return Ok(Vec::new()) };
    let (mut short, mut enough) = (0, most);
    while enough - short > most >> 10 {
        let middle = short + (enough - short) / 2;
        if within(request, Bytes(middle))?.is_some() { enough = middle } else { short = middle }
    }
    let budgets = (0..count).map(|part| Bytes(enough + (most - enough) * part / (count - 1).max(1)));
    let points = budgets.collect::<Vec<_>>().into_par_iter().map(|budget| {
        let found = within(request, budget)?;
        Ok(found.map(|found| CurvePoint { budget, found }))
    });
    Ok(points.collect::<Result<Vec<_>, PlanError>>()?.into_iter().flatten().collect())
}

/// How much shorter the step of a plan is with so many bytes more of the device. Errors: the request makes no sense.
pub fn saved_with_more(request: &Request, found: &Found, more: Bytes) -> Result<Seconds, PlanError> {
    let more = Bytes(request.budget.device().0.saturating_add(more.0));
    let step = within(request, more)?.map_or(found.step, |roomier| roomier.step);
    Ok(Seconds((found.step.0 - step.0).max(0.0)))
}

fn within(request: &Request, device: Bytes) -> Result<Option<Found>, PlanError> {
    let budget = match request.budget {
        Budget::Shared(_) => Budget::Shared(device),
        Budget::Apart { host, .. } => Budget::Apart { device, host },
    };
    Ok(search(&Request { budget, ..request.clone() })?.ok())
}
