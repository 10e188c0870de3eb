//! Checks whether the contracts fit their processors, and computes the data for the BPF program.

use penstock_vcpu::Mode;
use penstock_vcpu::admission::{Claim, Limits, WHOLE_PPM, admit};
use penstock_vcpu::deadline_queue::window;
use penstock_vcpu::slots::layout;
use thiserror::Error;

use crate::config::Wanted;
use crate::wire::{MAX_CPUS, Place, SEATS, Term};

/// A thread of this machine, with the contract from the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The kernel's id of the thread.
    pub tid: u32,
    /// Entry of the configuration file that matches the thread.
    pub wanted: Wanted,
}

/// Data that the loader passes to the BPF program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Contracts of the threads, by the kernel's thread id.
    pub terms: Vec<(u32, Term)>,
    /// Time slots of each thread with a deadline, with the thread's index in the BPF map `places`.
    pub places: Vec<(u32, Place)>,
}

/// Reason why the contracts do not fit their processors.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The processor's number is too large for the BPF program.
    #[error("{who}: cpu {cpu} is out of range; write a number below {MAX_CPUS}")]
    NoSuchCpu {
        /// Name of the thread in the error message.
        who: String,
        /// Number of the processor in the thread's contract.
        cpu: u16,
    },
    /// The processor has more threads with deadlines than [`SEATS`].
    #[error("cpu {cpu}: {count} threads with deadlines; at most {SEATS} fit, move some threads")]
    Seats {
        /// Number of the processor with too many deadlines.
        cpu: u16,
        /// Number of threads with deadlines on the processor.
        count: usize,
    },
    /// Admission control refused the deadlines of a processor. The field `who` lists the numbers
    /// and names of the vCPUs.
    #[error("cpu {cpu}: {refusal} (vCPUs: {who})")]
    Refused {
        /// Number of the processor whose deadlines admission control refused.
        cpu: u16,
        /// Rule of admission control that the deadlines violate, and a deadline that would fit.
        refusal: String,
        /// Numbers and names of the vCPUs on the processor.
        who: String,
    },
}

/// Checks all contracts and assigns slots to the deadlines.
///
/// # Errors
/// Returns the first contract that does not fit, with a contract that would fit.
pub fn plan(threads: &[Thread]) -> Result<Plan, Misfit> {
    let mut plan = Plan::default();
    for thread in threads {
        if let Some(cpu) = thread.wanted.cpu.filter(|cpu| u32::from(*cpu) >= MAX_CPUS) {
            return Err(Misfit::NoSuchCpu { who: thread.wanted.label(), cpu });
        }
        plan.terms.push((thread.tid, term(thread, 0)));
    }
    let mut cpus: Vec<u16> = threads.iter().filter_map(|thread| thread.wanted.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus {
        seat(&mut plan, cpu, threads)?;
    }
    Ok(plan)
}

fn term(thread: &Thread, seat: u32) -> Term {
    let contract = &thread.wanted.contract;
    Term {
        mode: contract.mode,
        weight: u32::from(contract.weight.get()),
        reserve_pct: u32::from(contract.io_reserve_pct),
        seat,
        deadline: contract.deadline.0,
    }
}

/// Assigns seats and slots to the deadlines of processor `cpu`.
fn seat(plan: &mut Plan, cpu: u16, threads: &[Thread]) -> Result<(), Misfit> {
    let here: Vec<&Thread> = threads.iter().filter(|t| t.wanted.cpu == Some(cpu)).collect();
    let weight = |thread: &Thread| u64::from(thread.wanted.contract.weight.get());
    let weights: u64 = here.iter().map(|thread| weight(thread)).sum();
    let driver = here.iter().any(|thread| thread.wanted.contract.mode == Mode::Driver);
    let due: Vec<&Thread> =
        here.into_iter().filter(|thread| thread.wanted.contract.mode.is_real_time()).collect();
    let deadline = |thread: &Thread| thread.wanted.contract.deadline;
    let claims: Vec<Claim> = due
        .iter()
        .map(|thread| Claim {
            deadline: deadline(thread),
            share_ppm: weight(thread) * WHOLE_PPM / weights.max(1),
        })
        .collect();
    let refused = |refusal: String| {
        let names = due.iter().enumerate().map(|(n, t)| format!("{n}: {}", t.wanted.label()));
        Misfit::Refused { cpu, refusal, who: names.collect::<Vec<_>>().join("; ") }
    };
    admit(&claims, driver, Limits::default()).map_err(|refusal| refused(refusal.to_string()))?;
    let windows: Vec<u64> = due.iter().map(|thread| window(deadline(thread))).collect();
    let own =
        layout(&windows).ok_or_else(|| refused("no slot layout fits the deadlines".to_owned()))?;
    let count = due.len();
    if u32::try_from(count).is_ok_and(|count| count > SEATS) {
        return Err(Misfit::Seats { cpu, count });
    }
    let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
    for (((thread, own), window), seat) in
        due.into_iter().zip(own).zip(windows).zip(u32::from(cpu) * SEATS..)
    {
        let place = Place {
            tid: thread.tid,
            window: narrow(window),
            period: narrow(own.period),
            phase: narrow(own.phase),
        };
        plan.places.push((seat, place));
        for (_, old) in plan.terms.iter_mut().filter(|(tid, _)| *tid == thread.tid) {
            *old = term(thread, seat);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use penstock_units::{Nanos, Weight};
    use penstock_vcpu::Contract;

    use super::*;

    fn thread(tid: u32, cpu: u16, deadline_ms: u64) -> Thread {
        let weight = Weight::new(1).unwrap();
        let contract = match deadline_ms {
            0 => Contract::by_credit(weight),
            ms => Contract::real_time(Mode::Periodic, Nanos::from_millis(ms), weight),
        };
        let wanted = Wanted { pid: 1, name: Some(format!("t{tid}")), cpu: Some(cpu), contract };
        Thread { tid, wanted }
    }

    #[test]
    fn a_deadline_gets_a_seat_of_its_processor() {
        let set: Vec<Thread> =
            (10..15).map(|tid| thread(tid, 3, 0)).chain([thread(9, 3, 3)]).collect();
        let plan = plan(&set).unwrap();
        assert_eq!(plan.places, [(24, Place { tid: 9, window: 7, period: 7, phase: 0 })]);
        let term = plan.terms.iter().find(|(tid, _)| *tid == 9).unwrap().1;
        assert_eq!((term.seat, term.deadline, term.mode), (24, 3_000_000, Mode::Periodic));
        assert_eq!(plan.terms.len(), 6);
    }

    #[test]
    fn what_does_not_fit_says_who_and_what_would() {
        let set: Vec<Thread> =
            (10..17).map(|tid| thread(tid, 0, 0)).chain([thread(9, 0, 3)]).collect();
        let error = plan(&set).unwrap_err().to_string();
        assert!(
            error.contains("3.5 ms") && error.contains("0: process 1, thread \"t9\""),
            "{error}"
        );
        let error = plan(&[thread(9, 300, 0)]).unwrap_err().to_string();
        assert!(error.contains("below 256"), "{error}");
    }

    #[test]
    fn seats_are_counted() {
        let set: Vec<Thread> = (0..9).map(|n| thread(10 + n, 0, 10)).collect();
        assert_eq!(plan(&set), Err(Misfit::Seats { cpu: 0, count: 9 }));
    }
}
