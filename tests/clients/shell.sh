#!/usr/bin/env bash
# ratelimit from a shell, with psql, on what setup.sql prepares.
#
# Connects with libpq's variables (PGHOST, PGUSER, PGDATABASE, …), as a role that has EXECUTE on
# rl_limit, rl_check and rl_credit. Every claim is asserted: it fails where one does not hold.
set -euo pipefail

# ON_ERROR_STOP: without it psql goes on after an error, and exits with 0.
sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }

# Prints t, or f and the seconds to wait. :'user' is a quoted literal, whatever the variable holds.
send_message() { # USER BODY
    sql -v user="$1" -v body="$2" <<'SQL'
BEGIN; -- on an error psql exits, which rolls back and returns the token
SELECT ok, coalesce(ceil(retry_after)::text, '') AS wait FROM rl_limit('sendMessage', :'user') \gset
\if :ok
    INSERT INTO messages VALUES (:'user', :'body');
\endif
COMMIT;
\echo :ok :wait
SQL
}

# A denial is an error here, and takes the whole transaction (-1) with it.
send_or_fail() { # USER BODY
    sql -1 -f - -v VERBOSITY=verbose -v user="$1" -v body="$2" <<'SQL'
INSERT INTO messages VALUES (:'user', :'body');
SELECT ok FROM rl_limit('sendMessage', :'user', throws => true);
SQL
}

# Takes the tokens of a job in advance, and stores when to run it: without a retry_at, at once.
# One statement, so one transaction. Prints nothing: too much is reserved already.
schedule() { # USER ESTIMATE
    sql -v user="$1" -v estimate="$2" <<'SQL'
INSERT INTO jobs (owner, estimate, run_at)
SELECT :'user', :'estimate', coalesce(retry_at, now())
FROM rl_limit('llmTokens', :'user', count => :'estimate', reserve => true) WHERE ok
RETURNING id;
SQL
}

# The job is done: gives back what it did not use, in the statement that deletes it.
settle() { # JOB USED
    sql -v job="$1" -v used="$2" <<'SQL'
WITH done AS (DELETE FROM jobs WHERE id = :'job' RETURNING owner, estimate)
SELECT remaining FROM done, LATERAL rl_credit('llmTokens', owner::text, estimate - :'used');
SQL
}

ask() { sql -v user="$user" <<<"$1"; }
fail() { echo "wrong: $*" >&2; exit 1; }
user=$(sql -c "INSERT INTO users (name) VALUES ('ken') RETURNING id")

# 1. An empty message breaks a constraint: the transaction rolls back, and no token is gone.
if send_message "$user" '' 2>/dev/null; then fail 'an empty message was sent'; fi
remaining=$(ask "SELECT remaining FROM rl_check('sendMessage', :'user')")
[ "$remaining" = 3 ] || fail "remaining is $remaining"

# 2. Three pass; the fourth is denied, by an ordinary row that says when to try again.
for body in one two three; do [ "$(send_message "$user" $body)" = 't ' ] || fail "$body was denied"; done
read -r ok wait < <(send_message "$user" 'one too many')
[[ $ok == f && $wait -gt 80000 && $wait -le 86400 ]] || fail "ok is $ok, retry_after $wait"
echo "denied: Retry-After: $wait"

# 3. The same as an error. retryAfter is in milliseconds, null where it can never pass.
if error=$(send_or_fail "$user" 'one too many' 2>&1); then fail 'it passed'; fi
[[ $error == *' PT429: '* ]] || fail "$error"
retry_ms=$(sed -nE 's/.*"retryAfter":([0-9]+).*/\1/p' <<<"$error")
[[ $retry_ms -gt 80000000 && $retry_ms -le 86400000 ]] || fail "retryAfter is $retry_ms"
[ "$(ask "SELECT count(*) FROM messages WHERE author = :'user'")" = 3 ] || fail 'there are not 3 messages'

# 4. Of 1,000 tokens, the first job runs now, the second when there are as many again, and a
# third would be too much.
now=$(schedule "$user" 800)
later=$(schedule "$user" 800)
never=$(schedule "$user" 800)
[ "$(ask "SELECT id FROM jobs WHERE owner = :'user' AND run_at <= now()")" = "$now" ] || fail "job $now is not due"
[[ -n $later && -z $never ]] || fail "later is '$later', never '$never'"
remaining=$(settle "$now" 500)
[ "$remaining" = $((1000 - 800 - 800 + (800 - 500))) ] || fail "remaining is $remaining"
