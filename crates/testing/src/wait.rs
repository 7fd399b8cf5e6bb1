//! Waiting for what a cluster does in its own time.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

/// For what a controller does as soon as it is told. Patience costs nothing but where something never comes, and machines are busy.
pub const SHORT: Duration = Duration::from_secs(180);
/// For what waits on a kubelet's own rhythm: a minute or more.
pub const LONG: Duration = Duration::from_secs(360);
const POLL: Duration = Duration::from_millis(200);

/// Asks again until the answer is good. The last bad answer tells what was wrong.
pub async fn eventually<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("waited {} s for: {what}", limit.as_secs()));
            }
            Err(_) => sleep(POLL).await,
        }
    }
}

/// Asks again and again for some time: the answer must be good throughout.
pub async fn holds(what: &str, time: Duration, mut ask: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        ask().await.with_context(|| format!("did not hold: {what}"))?;
        sleep(POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::{bail, ensure};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_first_good_answer() {
        let mut asked = 0;
        let answer = eventually("three", SHORT, async || {
            asked += 1;
            ensure!(asked >= 3, "only {asked}");
            Ok(asked)
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_in_vain_says_for_what_and_what_was_seen() {
        let error = eventually::<()>("a ready pod", SHORT, async || bail!("0 of 3 ready")).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("a ready pod") && text.contains("0 of 3 ready"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_breaks_in_between_does_not_hold() {
        let mut asked = 0;
        let outcome = holds("fewer than five", SHORT, async || {
            asked += 1;
            ensure!(asked < 5);
            Ok(())
        });
        assert!(outcome.await.is_err());
    }
}
