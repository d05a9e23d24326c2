// The lines of docs/clients.md for Go: lib/pq and pgx, on what setup.sql prepares.
//
// Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_limit_all and rl_check.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/lib/pq"
)

const (
	take   = "SELECT ok, retry_after FROM rl_limit('sendMessage', $1, $2)"
	throws = "SELECT ok FROM rl_limit('sendMessage', $1, throws => true)"
	window = "SELECT (rl_fixed_window(3, $1)->'period')::float8"
)

var config = map[string]any{"kind": "fixed window", "rate": 3, "period": 60000}
var requests = []map[string]any{{"name": "quota", "key": "go"}, {"name": "quota", "key": "others"}}

func right(what string, truth bool) {
	if !truth {
		log.Fatal("not so: ", what)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func text(value any) string {
	text, err := json.Marshal(value)
	must(err)
	return string(text)
}

func isDenial(detail string) bool {
	return strings.HasPrefix(detail, `{"kind":"RateLimited"`)
}

func withPq() {
	db, err := sql.Open("postgres", "sslmode=disable")
	must(err)
	var ok bool
	var retryAfter *float64 // NULL if it is allowed
	must(db.QueryRow(take, 60001, 3).Scan(&ok, &retryAfter))
	right("it passes", ok && retryAfter == nil)
	must(db.QueryRow(take, 60001, 1).Scan(&ok, &retryAfter))
	right("it is denied", !ok && *retryAfter > 80000)
	must(db.QueryRow("SELECT ok FROM rl_limit('go', config => $1)", text(config)).Scan(&ok))
	right("a config", ok)
	var count int
	must(db.QueryRow("SELECT count(*) FROM rl_limit_all($1)", text(requests)).Scan(&count))
	right("requests", count == 2)

	err = db.QueryRow(throws, 60001).Scan(&ok)
	var e *pq.Error
	right("PT429", errors.As(err, &e) && e.Code == "PT429" && isDenial(e.Detail))

	// A NULL doesn't fit a float64. A Duration is sent as its nanoseconds, a number of seconds to PostgreSQL.
	var wait, period float64
	right("a NULL", db.QueryRow("SELECT retry_after FROM rl_limit('sendMessage', 'pq')").Scan(&wait) != nil)
	must(db.QueryRow(window, time.Minute).Scan(&period))
	right("1,900 years", period == 60e9*1000)
	must(db.QueryRow(window, time.Minute.String()).Scan(&period)) // 1m0s
	right("a minute", period == 60000)
	var bare string
	must(db.QueryRow("SELECT rl_limit('sendMessage', $1)", 60001).Scan(&bare))
	right("a bare call is a text", strings.HasPrefix(bare, "(f,"))
}

func withPgx() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "sslmode=disable")
	must(err)
	defer conn.Close(ctx)
	var ok bool
	var retryAfter *float64 // NULL if it is allowed
	right("a number is no key", conn.QueryRow(ctx, take, 60002, 3).Scan(&ok, &retryAfter) != nil)
	user := 60002
	must(conn.QueryRow(ctx, take, strconv.Itoa(user), 3).Scan(&ok, &retryAfter))
	right("it passes", ok && retryAfter == nil)
	must(conn.QueryRow(ctx, take, strconv.Itoa(user), 1).Scan(&ok, &retryAfter))
	right("it is denied", !ok && *retryAfter > 80000)
	must(conn.QueryRow(ctx, "SELECT ok FROM rl_limit('go', 'b', config => $1)", config).Scan(&ok))
	right("a config", ok)
	var count int
	must(conn.QueryRow(ctx, "SELECT count(*) FROM rl_limit_all($1)", requests).Scan(&count))
	right("requests", count == 2)

	// Query returns no error: rows.Err() does, once they are read.
	rows, err := conn.Query(ctx, throws, strconv.Itoa(user))
	must(err)
	right("no row", !rows.Next())
	var e *pgconn.PgError
	right("PT429", errors.As(rows.Err(), &e) && e.Code == "PT429" && isDenial(e.Detail))

	var wait, period float64
	right("a NULL", conn.QueryRow(ctx, "SELECT retry_after FROM rl_limit('sendMessage', 'pgx')").Scan(&wait) != nil)
	must(conn.QueryRow(ctx, window, time.Minute).Scan(&period))
	right("a minute", period == 60000)
	right("a number is no period", conn.QueryRow(ctx, window, 60).Scan(&period) != nil)
	var bare string
	must(conn.QueryRow(ctx, "SELECT rl_limit('sendMessage', $1)", strconv.Itoa(user)).Scan(&bare))
	right("a bare call is a text", strings.HasPrefix(bare, "(f,"))
}

func main() {
	withPq()
	withPgx()
}
