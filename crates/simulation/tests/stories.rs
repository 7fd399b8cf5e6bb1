//! The stories that are also played on a real cluster end here as they end there.

use lockstep_simulation::stage::with_quiet_cluster;
use lockstep_testing::stories::{all, play};

const NAMESPACE: &str = "story";

#[test]
fn stories_end_as_on_a_real_cluster() {
    let mut failed = Vec::new();
    for (name, story) in all() {
        let played = with_quiet_cluster(NAMESPACE, async |client| play(&story, &client, NAMESPACE, "testapp").await);
        if let Err(error) = played {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    assert!(failed.is_empty(), "{} of {} end otherwise:\n{}", failed.len(), all().len(), failed.join("\n"));
}
