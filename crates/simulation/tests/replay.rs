//! A seed is one history, each time.

use std::thread;

use lockstep_simulation::schedule::Schedule;
use lockstep_simulation::seeds::recorded;
use lockstep_simulation::stage::{Outcome, Playing, play};

/// Few: unoptimized, each takes seconds.
const SEEDS: [u64; 3] = [3, 1_000, 77_777];

fn traced(schedule: &Schedule) -> Outcome {
    play(schedule, &Playing { is_traced: true, ..Playing::default() })
}

#[test]
fn a_seed_replays_exactly() {
    for seed in SEEDS {
        let schedule = Schedule::of(seed);
        let (first, second) = (traced(&schedule), traced(&schedule));
        assert!(first.trace.is_some() && first.trace == second.trace, "seed {seed}");
        assert_eq!((first.violation, first.lasted), (second.violation, second.lasted), "seed {seed}");
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    let schedule = Schedule::of(SEEDS[0]);
    let alone = traced(&schedule).trace;
    let beside = thread::scope(|scope| {
        let other = Schedule::of(SEEDS[1]);
        let noise = scope.spawn(move || traced(&other).trace);
        let again = scope.spawn(|| traced(&schedule).trace);
        let _ = noise.join();
        again.join().ok().flatten()
    });
    assert!(alone.is_some() && beside == alone);
}

#[test]
fn what_was_found_once_does_not_come_back() {
    let play = |(seed, why): (u64, &str)| {
        let violation = play(&Schedule::of(seed), &Playing::default()).violation?;
        Some(format!("seed {seed} ({why}): {violation}"))
    };
    let broken: Vec<String> = thread::scope(|scope| {
        let played: Vec<_> = recorded().into_iter().map(|recorded| scope.spawn(move || play(recorded))).collect();
        played.into_iter().filter_map(|played| played.join().expect("a schedule does not panic")).collect()
    });
    assert!(broken.is_empty(), "{broken:#?}");
}
