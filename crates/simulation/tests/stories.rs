//! The stories that are also played on a real cluster end here as they end there.

use lockstep_simulation::stage::with_quiet_cluster;
use lockstep_testing::stories::{Story, all, for_hours, play};

const NAMESPACE: &str = "story";

#[test]
fn stories_end_as_on_a_real_cluster() {
    play_all(&all());
}

#[test]
fn what_lasts_for_hours_ends_as_it_should() {
    play_all(&for_hours());
}

fn play_all(stories: &[(&str, Story)]) {
    let mut failed = Vec::new();
    for (name, story) in stories {
        let played = with_quiet_cluster(NAMESPACE, async |client| play(story, &client, NAMESPACE, "testapp").await);
        if let Err(error) = played {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    assert!(failed.is_empty(), "{} of {} end otherwise:\n{}", failed.len(), stories.len(), failed.join("\n"));
}
