//! The whole history of a schedule in one number: two runs of a seed must agree in it.

use std::io::{self, Write};

use jiff::Timestamp;

use crate::Shared;
use crate::invariants::difference;
use crate::kinds::Kind;
use crate::store::Change;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Who wrote what, and when; every byte of it.
pub fn digest(shared: &Shared) -> u64 {
    let world = shared.lock();
    world.store.changes_after(0).iter().fold(OFFSET, of_change)
}

fn of_change(digest: u64, change: &Change) -> u64 {
    let what = change.after.as_ref().map(|object| object.text()).unwrap_or_default();
    let who = format!("{} {:?} {}", change.key, change.by, change.at);
    [who, what]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(digest, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Tells every change on standard error, but for what renews itself.
pub fn tell(shared: &Shared, curtain: Timestamp) {
    let world = shared.lock();
    let mut out = io::BufWriter::new(io::stderr().lock());
    for change in world.store.changes_after(0).iter().filter(|change| change.key.kind != Kind::Lease) {
        let at = change.at.duration_since(curtain).as_secs_f64();
        // Whoever reads this may have gone away.
        let _ = writeln!(out, "{at:>9.3} {:?} {}: {}", change.by, change.key, difference(change));
    }
}
