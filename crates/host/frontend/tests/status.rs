//! What a running frontend shows of itself.

use std::time::{Duration, Instant};

use sluicegate_frontend::{Config, Control, Frontend, KeyHolder};

/// Longer than anything that works takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "in {PATIENCE:?} it did not come to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The figures of a family, by shard.
fn figures(control: &Control, family: &str) -> Vec<(String, f64)> {
    let metrics = control.metrics();
    let found = metrics.into_iter().find(|metric| metric.family.name == family).expect("a family of this name");
    found.samples.into_iter().map(|(labels, value)| (labels[0].to_string(), value)).collect()
}

#[tokio::test]
async fn an_idle_frontend_shows_how_busy_its_threads_are_and_which_table_is_nearly_full() {
    let state = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new("one", "example.net", any, any, state.path().join("frontend"));
    config.keyholder = KeyHolder::Thread { directory: state.path().join("keyholder") };
    config.shards = 2;
    let frontend = Frontend::start(config).await.unwrap();
    let control = frontend.control();
    until("both threads were measured, although overload control is off", || {
        let busy = figures(&control, "sluicegate_frontend_thread_busy_ratio");
        let is_measured = |(_, share): &(String, f64)| *share > 0.0 && *share <= 1.0;
        busy.iter().all(is_measured) && busy.iter().map(|(shard, _)| &**shard).eq(["0", "1"])
    })
    .await;
    assert_eq!(figures(&control, "sluicegate_frontend_wait_seconds").len(), 2);
    assert!(figures(&control, "sluicegate_frontend_admitted_per_source").is_empty());
    let full = "table traces is nearly full: 4 of 4".to_owned();
    assert!(!control.status().alarms.contains(&full));
    for user in ["alice", "bob", "carol", "dave"] {
        control.trace_messages(user, 0).unwrap();
    }
    assert!(control.status().alarms.contains(&full), "{:?}", control.status().alarms);
}
