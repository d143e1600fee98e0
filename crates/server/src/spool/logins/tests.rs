use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn later(time: Duration) -> Timestamp {
    Timestamp(NOW.0 + time.as_millis() as u64)
}

fn credentials(password: &str) -> Arc<Credentials> {
    Arc::new(Credentials::plain("edge", password))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("logins")
    }

    /// As after a restart.
    fn open(&self) -> Arc<RememberedLogins> {
        Arc::new(RememberedLogins::open(Some(self.path()), DAY))
    }

    /// The file, once it has been written with what `is_there` wants.
    async fn written(&self, is_there: impl Fn(&str) -> bool) -> String {
        for _ in 0..1000 {
            let text = std::fs::read_to_string(self.path()).unwrap_or_default();
            if is_there(&text) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never written")
    }
}

#[tokio::test]
async fn an_accepted_login_counts_for_its_time_after_a_restart_and_no_other_does() {
    let folder = Folder::new();
    folder.open().accepted("/", &credentials("right"), NOW);
    let text = folder.written(|text| text.ends_with('\n')).await;
    assert!(!text.contains("right") && !text.contains(&STANDARD.encode("right")), "{text}");
    let logins = folder.open();
    assert!(logins.has_any(later(DAY)) && !logins.has_any(later(2 * DAY)));
    assert!(!logins.vouch_for(None, &credentials("wrong"), NOW).await);
    assert!(!logins.vouch_for(Some("other"), &credentials("right"), NOW).await);
    assert!(!logins.vouch_for(None, &Arc::new(Credentials::plain("other", "right")), NOW).await);
    assert!(!logins.vouch_for(None, &credentials("right"), later(2 * DAY)).await);
    assert!(logins.vouch_for(None, &credentials("right"), later(DAY)).await);
    assert!(logins.vouch_for(Some("/"), &credentials("right"), NOW).await);
    assert!(!logins.vouch_for(None, &credentials("wrong"), NOW).await, "known by now");
}

#[tokio::test]
async fn another_password_replaces_the_first_and_a_refusal_ends_its_own_alone() {
    let folder = Folder::new();
    let logins = folder.open();
    logins.accepted("/", &credentials("first"), NOW);
    logins.accepted("/", &credentials("second"), NOW);
    assert!(!logins.vouch_for(None, &credentials("first"), NOW).await);
    folder.written(|text| text.lines().count() == 1).await;
    let logins = folder.open();
    logins.refused(None, &credentials("first"));
    logins.refused(Some("other"), &credentials("second"));
    assert!(logins.vouch_for(None, &credentials("second"), NOW).await);
    logins.refused(Some("/"), &credentials("second"));
    folder.written(str::is_empty).await;
    assert!(!logins.vouch_for(None, &credentials("second"), NOW).await && !logins.has_any(NOW));
}

#[tokio::test]
async fn a_later_acceptance_counts_longer_and_is_written_now_and_then() {
    let folder = Folder::new();
    let logins = folder.open();
    logins.accepted("/", &credentials("right"), NOW);
    let first = folder.written(|text| !text.is_empty()).await;
    logins.accepted("/", &credentials("right"), later(DAY / 100));
    logins.accepted("/", &credentials("right"), later(DAY / 2));
    let second = folder.written(|text| text != first).await;
    assert!(second.contains(&later(DAY / 2).0.to_string()), "{second}");
    assert!(folder.open().vouch_for(None, &credentials("right"), later(DAY * 3 / 2)).await);
}

#[tokio::test]
async fn nothing_is_remembered_without_a_time_and_damaged_lines_are_skipped() {
    let folder = Folder::new();
    let off = Arc::new(RememberedLogins::open(Some(folder.path()), Duration::ZERO));
    off.accepted("/", &credentials("right"), NOW);
    assert!(!off.vouch_for(None, &credentials("right"), NOW).await);
    for line in ["", "1", "2 1 1 a b c d", "1 0 99999999999 AA== AA== Lw== Lw==", "1 0 1 AA== AA== Lw== Lw=="]
    {
        assert!(RememberedLogin::parse(line).is_none(), "{line}");
    }
}
