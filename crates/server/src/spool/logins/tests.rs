use std::path::PathBuf;
use std::sync::atomic::Ordering;

use amqp::Mechanism;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::file::LoginLine;
use super::record::MAX_SECRETS;
use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn later(time: Duration) -> Timestamp {
    Timestamp(NOW.0 + time.as_millis() as u64)
}

fn of_user(user: &str, password: &str) -> Arc<Credentials> {
    Arc::new(Credentials::plain(user, password))
}

fn credentials(password: &str) -> Arc<Credentials> {
    of_user("edge", password)
}

/// The same user and password in the other mechanism.
fn amqplain(password: &str) -> Arc<Credentials> {
    Arc::new(Credentials { mechanism: Mechanism::AmqPlain, ..Credentials::plain("edge", password) })
}

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("logins")
    }

    /// Opens the file as after a restart.
    fn open(&self) -> Arc<RememberedLogins> {
        self.open_at(NOW)
    }

    fn open_at(&self, now: Timestamp) -> Arc<RememberedLogins> {
        Arc::new(RememberedLogins::open(Some(self.path()), DAY, now))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// Waits until the file satisfies `is_there`; returns it.
    async fn written(&self, is_there: impl Fn(&str) -> bool) -> String {
        for _ in 0..3000 {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never written")
    }
}

fn runs(logins: &RememberedLogins) -> u64 {
    logins.hasher.runs.load(Ordering::Relaxed)
}

/// A directory in which another process has stored these logins.
async fn left_by_another(logins: &[Arc<Credentials>]) -> Directory {
    let directory = Directory::new();
    let before = directory.open();
    for login in logins {
        before.accepted("/", login, NOW);
    }
    directory.written(|text| text.lines().count() == logins.len()).await;
    directory
}

#[tokio::test]
async fn an_accepted_login_counts_for_its_time_after_a_restart_and_no_other_does() {
    let directory = left_by_another(&[credentials("right")]).await;
    let text = directory.text();
    assert!(!text.contains("right") && !text.contains(&STANDARD.encode("right")), "{text}");
    let logins = directory.open();
    assert!(logins.has_any(later(DAY)) && !logins.has_any(later(2 * DAY)));
    assert!(logins.has_user("edge", NOW) && !logins.has_user("other", NOW));
    assert!(!logins.are_remembered(None, &credentials("wrong"), NOW).await);
    assert!(!logins.are_remembered(Some("other"), &credentials("right"), NOW).await);
    assert!(!logins.are_remembered(None, &of_user("other", "right"), NOW).await);
    assert!(!logins.are_remembered(None, &credentials("right"), later(2 * DAY)).await);
    assert!(logins.are_remembered(None, &credentials("right"), later(DAY)).await);
    assert!(logins.are_remembered(Some("/"), &credentials("right"), NOW).await);
    assert!(
        !logins.are_remembered(None, &credentials("wrong"), NOW).await,
        "a wrong password is not compared twice"
    );
    assert_eq!(runs(&logins), 2, "one for each password of the user");
}

#[tokio::test]
async fn both_mechanisms_and_the_passwords_of_a_user_do_not_push_each_other_out() {
    let directory = Directory::new();
    let logins = directory.open();
    for _ in 0..10 {
        for login in [credentials("old"), amqplain("old"), credentials("new"), amqplain("new")] {
            logins.accepted("/", &login, NOW);
            logins.accepted("orders", &login, NOW);
            assert!(logins.are_remembered(Some("/"), &login, NOW).await);
        }
    }
    // A password accepted in two virtual hosts has two lines.
    directory.written(|text| text.lines().count() == 4).await;
    assert_eq!(runs(&logins), 2);
    let logins = directory.open();
    for login in [amqplain("old"), credentials("new"), credentials("old")] {
        assert!(logins.are_remembered(Some("orders"), &login, NOW).await);
    }
    // A login presented again after a restart, and accepted, counts as the same.
    logins.accepted("/", &amqplain("new"), NOW);
    assert_eq!((runs(&logins), directory.text().lines().count()), (2, 4));
}

#[tokio::test]
async fn a_login_of_the_file_that_is_accepted_before_it_is_compared_is_no_second_one() {
    let directory = left_by_another(&[credentials("right")]).await;
    let logins = directory.open();
    logins.accepted("orders", &credentials("right"), NOW);
    directory.written(|text| text.lines().count() == 2).await;
    assert!(logins.are_remembered(Some("/"), &credentials("right"), NOW).await);
    assert_eq!(runs(&logins), 1);
    logins.refused(None, &credentials("right"));
    directory.written(str::is_empty).await;
}

#[tokio::test]
async fn only_names_with_passwords_are_remembered() {
    let logins = Directory::new().open();
    let external = Credentials { username: "edge".to_owned(), ..Credentials::external(None) };
    let other = Credentials { authorize_as: Some("boss".to_owned()), ..Credentials::plain("edge", "right") };
    logins.accepted("/", &credentials(""), NOW);
    for login in [external, other].map(Arc::new) {
        logins.accepted("/", &login, NOW);
        assert!(!logins.are_remembered(Some("/"), &login, NOW).await, "{login:?}");
    }
    assert!(!logins.are_remembered(Some("/"), &credentials("right"), NOW).await);
}

#[tokio::test]
async fn the_secrets_of_a_user_are_bounded_to_those_that_were_accepted_last() {
    let logins = Directory::new().open();
    for number in 0..=MAX_SECRETS {
        let at = later(Duration::from_secs(number as u64));
        logins.accepted("/", &credentials(&format!("token {number}")), at);
    }
    assert!(!logins.are_remembered(None, &credentials("token 0"), NOW).await);
    for number in 1..=MAX_SECRETS {
        assert!(logins.are_remembered(None, &credentials(&format!("token {number}")), NOW).await);
    }
}

#[tokio::test]
async fn a_refusal_ends_its_own_password_alone() {
    let directory = left_by_another(&[credentials("first"), credentials("second")]).await;
    let logins = directory.open();
    // The refused password is known by its slow hash only.
    logins.refused(None, &credentials("first"));
    assert!(!logins.are_remembered(None, &credentials("first"), NOW).await);
    directory.written(|text| text.lines().count() == 1).await;
    logins.refused(Some("other"), &credentials("second"));
    assert!(logins.are_remembered(None, &credentials("second"), NOW).await);
    // The refused password is known by its fingerprint.
    logins.refused(Some("/"), &credentials("second"));
    directory.written(str::is_empty).await;
    assert!(!logins.are_remembered(None, &credentials("second"), NOW).await && !logins.has_any(NOW));
}

#[tokio::test]
async fn a_late_refusal_keeps_a_login_accepted_after_it() {
    let directory = left_by_another(&[credentials("right")]).await;
    let logins = directory.open();
    // Comparing the first refused password takes longer than the second acceptance.
    logins.refused(None, &credentials("right"));
    logins.accepted("/", &credentials("right"), later(DAY / 2));
    let at = later(DAY / 2).0.to_string();
    directory.written(|text| text.contains(&at)).await;
    while !logins.state.lock().comparisons.values().all(|comparison| comparison.outcome.strong_count() == 0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::task::yield_now().await;
    assert!(logins.are_remembered(Some("/"), &credentials("right"), later(DAY)).await);
    assert!(directory.open_at(later(DAY / 2)).has_any(later(DAY)));
}

#[tokio::test]
async fn wrong_passwords_cost_a_bounded_number_of_hashes_and_are_not_compared_twice() {
    let directory = left_by_another(&[credentials("right"), of_user("other", "right")]).await;
    let logins = directory.open();
    for number in 0..200 {
        logins.refused(None, &credentials(&format!("wrong {number}")));
        logins.refused(None, &of_user("nobody", "wrong"));
    }
    let mut asked = tokio::task::JoinSet::new();
    for number in 200..400 {
        let logins = Arc::clone(&logins);
        let wrong = credentials(&format!("wrong {number}"));
        asked.spawn(async move { logins.are_remembered(None, &wrong, NOW).await });
    }
    // Another user's correct password is compared meanwhile, for many clients at once.
    for _ in 0..50 {
        let logins = Arc::clone(&logins);
        asked.spawn(async move { logins.are_remembered(None, &of_user("other", "right"), NOW).await });
    }
    let right = asked.join_all().await.into_iter().filter(|is_remembered| *is_remembered).count();
    let so_far = runs(&logins);
    assert!(right == 50 && so_far <= 1 + MAX_COMPARISONS_OF_USER as u64, "{right}, {so_far}");
    while logins.state.lock().comparisons.values().any(|comparison| comparison.outcome.strong_count() > 0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The wrong passwords are known as such, and the correct one is still accepted.
    let so_far = runs(&logins);
    for _ in 0..100 {
        assert!(!logins.are_remembered(None, &credentials("wrong 0"), NOW).await);
        logins.refused(None, &credentials("wrong 0"));
    }
    assert_eq!(runs(&logins), so_far);
    assert!(logins.are_remembered(None, &credentials("right"), NOW).await);
    for number in 0..2 * MAX_MISMATCHES {
        logins.refused(None, &credentials(&number.to_string()));
    }
    assert_eq!(logins.state.lock().mismatches.len(), MAX_MISMATCHES);
}

#[tokio::test]
async fn a_refused_password_counts_no_longer_even_if_there_is_no_capacity_to_compare_it() {
    let directory = left_by_another(&[credentials("revoked")]).await;
    let logins = directory.open();
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..MAX_COMPARISONS_OF_USER {
        let (logins, wrong) = (Arc::clone(&logins), credentials(&format!("wrong {number}")));
        asked.spawn(async move { logins.are_remembered(None, &wrong, NOW).await });
    }
    while logins.state.lock().comparisons.len() < MAX_COMPARISONS_OF_USER {
        tokio::task::yield_now().await;
    }
    logins.refused(None, &credentials("revoked"));
    asked.join_all().await;
    tokio::time::pause();
    tokio::time::advance(2 * MISMATCH_TTL).await;
    assert!(!logins.are_remembered(None, &credentials("revoked"), NOW).await);
}

#[tokio::test]
async fn a_later_acceptance_counts_longer_and_is_written_now_and_then() {
    let directory = Directory::new();
    let logins = directory.open();
    logins.accepted("/", &credentials("right"), NOW);
    let first = directory.written(|text| !text.is_empty()).await;
    logins.accepted("/", &credentials("right"), later(DAY / 100));
    logins.accepted("/", &credentials("right"), later(DAY / 2));
    let second = directory.written(|text| text != first).await;
    assert!(second.contains(&later(DAY / 2).0.to_string()), "{second}");
    let after = directory.open_at(later(DAY));
    assert!(after.are_remembered(None, &credentials("right"), later(DAY * 3 / 2)).await);
}

#[tokio::test]
async fn expired_logins_are_removed_from_the_file() {
    let directory = left_by_another(&[credentials("right")]).await;
    let logins = directory.open();
    logins.expire(later(DAY / 2));
    assert_eq!(directory.text().lines().count(), 1);
    logins.expire(later(DAY + Duration::from_secs(1)));
    directory.written(str::is_empty).await;
    // Also logins that expired while no process was running, and all of them when remembering is switched off.
    let directory = left_by_another(&[credentials("right")]).await;
    directory.open_at(later(2 * DAY));
    assert_eq!(directory.text(), "");
    let directory = left_by_another(&[credentials("right")]).await;
    RememberedLogins::open(Some(directory.path()), Duration::ZERO, NOW);
    assert!(!directory.path().exists());
}

#[tokio::test]
async fn a_clock_that_was_ahead_makes_no_login_count_longer() {
    let directory = left_by_another(&[credentials("right")]).await;
    let before = Timestamp(NOW.0 - DAY.as_millis() as u64);
    assert!(!directory.open_at(before).has_any(later(Duration::from_secs(1))));
}

#[tokio::test]
async fn only_the_own_user_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // A file of another user exists under the temporary name.
    let new = directory.path().with_extension("new");
    std::fs::write(&new, "").unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o666)).unwrap();
    directory.open().accepted("/", &credentials("right"), NOW);
    directory.written(|text| !text.is_empty()).await;
    assert_eq!(mode(&directory.path()), 0o600);
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(directory.open().has_any(NOW));
    assert_eq!(mode(&directory.path()), 0o600);
}

#[tokio::test]
async fn nothing_is_remembered_without_a_time_and_damaged_lines_are_skipped() {
    let directory = Directory::new();
    let off = Arc::new(RememberedLogins::open(Some(directory.path()), Duration::ZERO, NOW));
    off.accepted("/", &credentials("right"), NOW);
    assert!(!off.are_remembered(None, &credentials("right"), NOW).await);
    for line in ["", "1", "2 1 1 a b c d", "1 0 99999999999 AA== AA== Lw== Lw==", "1 0 1 AA== AA== Lw== Lw=="]
    {
        assert!(LoginLine::parse(line).is_none(), "{line}");
    }
}
