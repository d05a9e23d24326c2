// Times after the year 9999 in Go: lib/pq, in time zones on both sides of UTC.
//
// Reads the statements of far_times.txt. Connects with libpq's variables.
package main

import (
	"bufio"
	"database/sql"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/lib/pq"
)

var last = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC)

// Runs a statement in a transaction. An error rolls it back.
func run(db *sql.DB, statement string) (values []time.Time, err error) {
	tx, err := db.Begin()
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	rows, err := tx.Query(statement)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		columns, _ := rows.Columns()
		row := make([]time.Time, len(columns))
		places := make([]any, len(columns))
		for i := range row {
			places[i] = &row[i]
		}
		if err := rows.Scan(places...); err != nil {
			return nil, err
		}
		values = append(values, row...)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return values, tx.Commit()
}

func main() {
	var statements, failures []string
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "--") {
			statements = append(statements, line)
		}
	}
	for _, zone := range []string{"Pacific/Kiritimati", "Etc/GMT+12"} { // 14 hours before UTC, and 12 after it
		connector, err := pq.NewConnector(fmt.Sprintf("sslmode=disable TimeZone=%s", zone))
		if err != nil {
			log.Fatal(err)
		}
		db := sql.OpenDB(connector)
		client := "lib/pq, " + zone
		for _, statement := range statements {
			values, err := run(db, strings.ReplaceAll(statement, "@", client))
			wrong := err != nil || strings.HasPrefix(statement, "SELECT") && len(values) == 0
			for _, value := range values {
				wrong = wrong || !value.Equal(last)
			}
			if wrong {
				failures = append(failures, fmt.Sprintln(client, statement, values, err))
			}
		}
		var ok, ended bool
		blocked := client + " blocked"
		if err := db.QueryRow("SELECT ok FROM rl_check('slow', $1)", blocked).Scan(&ok); err != nil {
			log.Fatal(err)
		}
		if err := db.QueryRow("SELECT rl_unblock('slow', $1)", blocked).Scan(&ended); err != nil {
			log.Fatal(err)
		}
		if ok || !ended {
			failures = append(failures, client+": the key is not blocked\n")
		}
	}
	if len(statements) == 0 || len(failures) > 0 {
		log.Fatal(strings.Join(failures, ""))
	}
}
