//! A seed is one history, each time.

use lockstep_simulation::schedule::Schedule;
use lockstep_simulation::stage::{Playing, play};

/// Few: unoptimized, each takes seconds.
const SEEDS: [u64; 3] = [3, 1_000, 77_777];

#[test]
fn a_seed_replays_exactly() {
    for seed in SEEDS {
        let schedule = Schedule::of(seed);
        let (first, second) = (play(&schedule, &Playing::default()), play(&schedule, &Playing::default()));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!((first.violation, first.lasted), (second.violation, second.lasted), "seed {seed}");
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    let schedule = Schedule::of(SEEDS[0]);
    let alone = play(&schedule, &Playing::default()).trace;
    let beside: Vec<u64> = std::thread::scope(|scope| {
        let other = Schedule::of(SEEDS[1]);
        let noise = scope.spawn(move || play(&other, &Playing::default()).trace);
        let again = scope.spawn(|| play(&schedule, &Playing::default()).trace);
        let _ = noise.join();
        again.join().into_iter().collect()
    });
    assert_eq!(beside, [alone]);
}
