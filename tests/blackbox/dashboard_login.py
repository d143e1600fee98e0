"""Dashboard login: right and wrong credentials, where they are stored, and what each user may see."""

from harness.dashboard import ask, server, visit, window


def places(visit):
    return visit.window.evaluate("return [...document.querySelectorAll('#places a')].map((each) => each.textContent)")


def is_logged_out(visit):
    return visit.window.evaluate(
        "return document.getElementById('view').hidden && !document.getElementById('login').hidden"
    )


def test_a_failed_login_shows_the_reason_and_can_be_retried(visit):
    visit.open()
    visit.log_in(password="wrong")
    visit.window.wait_for_text("#login-state", "^Login failed: wrong user name or password")
    assert is_logged_out(visit)
    assert visit.window.evaluate("return sessionStorage.length") == 0
    visit.log_in()
    visit.settle()
    assert visit.text("#view h1") == "Overview"
    assert visit.text("#user") == "guest"
    # The browser's own password prompt would block the page; the refusal itself is the only console message.
    assert [line for line in visit.window.complaints() if "401" not in line] == []


def test_a_failed_login_names_the_rule_for_guest(visit):
    visit.open()
    visit.log_in(password="wrong")
    visit.window.wait_for_text("#login-state", "guest may log in from the server's machine only\\.$")


def test_a_password_stays_in_this_tab_and_out_of_the_address(visit):
    visit.enter("queues")
    kept = visit.window.evaluate("return [Object.keys(sessionStorage), localStorage.length, document.cookie]")
    assert kept == [["leveret.authorization"], 0, ""]
    address = visit.window.evaluate("return [location.href, history.length && document.referrer]")
    assert address == [visit.server.http + "/#/queues", ""]
    # A reload shows the same page again.
    visit.window.reload()
    visit.settle()
    assert visit.text("#view h1") == "Queues"
    # Another tab is not logged in.
    first = visit.window.tab()
    second = visit.window.new_tab()
    visit.window.open(visit.server.http + "/#/queues")
    visit.wait("!document.getElementById('login').hidden")
    assert is_logged_out(visit)
    visit.window.close_tab()
    visit.window.turn_to(first)
    assert second != first


def test_logging_out_forgets_everything(visit):
    visit.enter("queues")
    visit.window.click("#logout")
    assert is_logged_out(visit)
    assert visit.window.evaluate("return sessionStorage.getItem('leveret.authorization')") is None
    assert visit.window.evaluate("return document.querySelector('#view').childElementCount") == 0
    visit.window.reload()
    visit.wait("!document.getElementById('login').hidden")
    assert is_logged_out(visit)


def test_logging_out_before_the_first_figures_ends_it_all_the_same(visit):
    visit.open()
    # The first request, for the list of virtual hosts, is held back until the user has logged out.
    script = """
        const [fetch, setInterval] = [window.fetch, window.setInterval];
        [window.asked, window.timers] = [[], 0];
        window.setInterval = (...all) => (timers += 1, setInterval(...all));
        window.fetch = async (url, ...rest) => {
            asked.push(String(url));
            const answer = await fetch(url, ...rest);
            if (String(url).includes("/api/vhosts")) await new Promise((resolve) => (window.release = resolve));
            return answer;
        };
    """
    visit.window.evaluate(script)
    visit.log_in()
    visit.wait("window.release !== undefined")
    visit.window.click("#logout")
    visit.window.evaluate("asked.length = 0; release()")
    # The menu is filled from the response; everything that depends on it happens immediately.
    visit.wait("document.querySelector('#vhost option') !== null")
    visit.window.run("await new Promise((resolve) => setTimeout(resolve))")
    assert is_logged_out(visit)
    assert visit.window.evaluate("return [asked.length, timers, document.querySelector('#view').childElementCount]") == [0, 0, 0]


def test_a_password_may_be_anything(visit, server):
    ask(server, "PUT", "users/%C3%A9l%C3%A8ve", {"password": "pä:ss wörd 🐇", "tags": "management"})
    visit.open()
    visit.log_in("élève", "pä:ss wörd 🐇")
    visit.settle()
    assert visit.text("#user") == "élève"


def test_the_menu_offers_only_pages_permitted_by_the_users_tags(visit, server):
    ask(server, "PUT", "users/boss", {"password": "b", "tags": "administrator"})
    ask(server, "PUT", "users/clerk", {"password": "c", "tags": "management"})
    ask(server, "PUT", "users/planner", {"password": "p", "tags": "policymaker"})
    ask(server, "PUT", "users/nobody", {"password": "n", "tags": ""})
    ask(server, "PUT", "permissions/%2F/clerk", {"configure": ".*", "write": ".*", "read": ".*"})
    visit.enter(user="boss", password="b")
    assert {"Policies", "Users", "Virtual hosts"} <= set(places(visit))
    visit.enter(user="planner", password="p")
    assert {"Policies"} == {"Policies", "Users", "Virtual hosts"} & set(places(visit))
    visit.enter("queues", user="clerk", password="c")
    assert not {"Policies", "Users", "Virtual hosts"} & set(places(visit))
    assert visit.text("#view h1") == "Queues"
    visit.go("users")
    assert visit.text("#view h1") == "Page not found"
    visit.open()
    visit.log_in("nobody", "n")
    visit.window.wait_for_text("#login-state", "no tag such as")
    assert is_logged_out(visit)


def test_a_password_that_was_changed_meanwhile_ends_the_session(visit, server):
    ask(server, "PUT", "users/fleeting", {"password": "old", "tags": "administrator"})
    visit.enter(user="fleeting", password="old")
    ask(server, "PUT", "users/fleeting", {"password": "new", "tags": "administrator"})
    visit.wait("!document.getElementById('login').hidden")
    assert is_logged_out(visit)
