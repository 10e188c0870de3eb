//! Made situations: whether `penstock explain` names the true cause of a VM's rate.
//!
//! # Approach
//!
//! In each situation ([`made::MADE`]), one thing limits a VM: a limit of its own, its receiver, a
//! link, its cycles, its neighbours, the core, or nothing. A simulated switch runs the situation,
//! and its counters go to the function that answers `penstock explain`. The answer is wrong if its
//! first cause is not the made one, if it names another port, or if its text lacks the words that
//! tell the cause from its siblings. The seed varies the offered rates by up to 3 %.
//!
//! # Departures
//!
//! The situations run on one slow core of 100 MHz. A port without a driver is not made, because the
//! simulated ports always have one.

mod bed;
mod made;

use anyhow::Context as _;
use penstock_control::explain::explain;

use crate::evidence::{Context, Outcome};
use crate::live;
use bed::Bed;
use made::{MADE, Made};

/// In a run with shorter phases, one of this many situations is made.
const SHORT: usize = 8;

/// Returns the number of situations that are explained wrongly. Writes the wrong answers into the
/// outcome.
pub(super) fn wrong(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<u32> {
    // In short runs, a few situations show that the figure works. A test makes all of them.
    let every = if ctx.is_whole() { 1 } else { SHORT };
    let (mut wrong, mut situations) = (0, 0);
    for made in MADE.iter().step_by(every) {
        situations += 1;
        if let Some(answer) = wrong_answer(made, ctx.seed).context(made.name)? {
            outcome.note(&format!("false_remedy, {}", made.name), answer);
            wrong += 1;
        }
    }
    outcome.note("made_situations", situations);
    Ok(wrong)
}

/// Returns the answer about a situation, if the answer is wrong.
fn wrong_answer(made: &Made, seed: u64) -> anyhow::Result<Option<String>> {
    let mut bed = Bed::new(seed, made.slow)?;
    (made.make)(&mut bed)?;
    let growth = bed.grow();
    let answer = explain(&growth, &bed::status()).context("the port is gone")?;
    let cause = [made.cause.limit, made.cause.port, made.cause.words];
    let texts = [&*answer.why, &*answer.verdict];
    Ok(live::wrong_words(cause, [&answer.limit, &answer.limit_port], texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_made_situation_is_explained_by_its_cause() {
        let wrong: Vec<String> = MADE
            .iter()
            .filter_map(|made| {
                let answer = wrong_answer(made, 1).unwrap()?;
                Some(format!("{} ({:?}): {answer}", made.name, made.cause))
            })
            .collect();
        assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn a_shaper_is_named_whatever_part_of_its_groups_the_first_batch_has() {
        let shaper = MADE.iter().find(|made| made.name == "shaper").unwrap();
        for seed in [17, 47, 58] {
            assert_eq!(wrong_answer(shaper, seed).unwrap(), None, "seed {seed}");
        }
    }
}
