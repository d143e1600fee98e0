use super::*;

fn grant(user: &str, permissions: Option<Permissions>) -> Arc<Grant> {
    let grant = Grants::default().of(user, &"/".into(), Compatibility::V3_10);
    grant.set(permissions.as_ref()).unwrap();
    grant
}

fn refusal(result: Result<(), BrokerError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn each_kind_of_access_has_its_own_expression() {
    let permissions = Permissions { configure: "^c".into(), write: "^w".into(), read: "^r".into() };
    let grant = grant("u", Some(permissions));
    let cases = [(Access::Configure, "c"), (Access::Write, "w"), (Access::Read, "r")];
    for (access, _) in cases {
        for (own, name) in cases {
            assert_eq!(
                grant.check(access, Resource::Queue, name).is_ok(),
                access == own,
                "{access:?} {name}"
            );
        }
    }
}

#[test]
fn refusals_are_reported_as_in_rabbitmq() {
    let grant = grant("u", Some(Permissions::default()));
    assert_eq!(
        refusal(grant.check(Access::Read, Resource::Queue, "q")),
        "access to queue 'q' in vhost '/' refused for user 'u'"
    );
    assert_eq!(
        refusal(grant.check(Access::Write, Resource::Exchange, "")),
        "access to exchange 'amq.default' in vhost '/' refused for user 'u'"
    );
}

#[test]
fn permission_changes_apply_to_grants_already_held() {
    let grants = Grants::default();
    let held = grants.of("u", &"/".into(), Compatibility::V3_10);
    assert!(held.check(Access::Read, Resource::Queue, "q").is_err());
    assert!(!grants.may_open("u"));
    grants.of("u", &"/".into(), Compatibility::V3_10).set(Some(&Permissions::all())).unwrap();
    assert!(held.check(Access::Read, Resource::Queue, "q").is_ok());
    assert!(grants.may_open("u"));
    held.set(None).unwrap();
    assert!(!grants.may_open("u"));
}

#[test]
fn topics_are_restricted_only_where_permissions_are_set() {
    let grant = grant("john.doe", Some(Permissions::all()));
    let write = "^{username}\\.{vhost}\\.".to_owned();
    grant.set_topic(&TopicPermissions { exchange: "t".into(), write, read: String::new() }).unwrap();
    assert!(grant.check_topic(Access::Write, "t", "john.doe./.x", None).is_ok());
    assert!(grant.check_topic(Access::Write, "t", "john_doe./.x", None).is_err(), "names are literal");
    assert!(grant.check_topic(Access::Write, "other", "any", None).is_ok());
    assert_eq!(
        refusal(grant.check_topic(Access::Read, "t", "k", None)),
        "access to topic 'k' in exchange 't' in vhost '/' refused for user 'john.doe'"
    );
}

#[test]
fn wrong_expressions_change_nothing() {
    let grant = grant("u", Some(Permissions::all()));
    let wrong = Permissions { read: "(".into(), ..Permissions::default() };
    assert!(grant.set(Some(&wrong)).is_err());
    assert!(grant.check(Access::Write, Resource::Queue, "q").is_ok());
}
