# The commands of a developer; scripts/ does the work. CONTRIBUTING.md lists the variables.

export PG PG_CONFIG BUILD DESTDIR ONLY TESTS ACCESS TIMES SEED VERSION PORT SCHEMA APP

.PHONY: all install uninstall help run plain playground example pictures test test-all test-citus test-asserts accept soak prove bench lint docs package test-packages release clean
all:
	@BUILD=release scripts/build

install uninstall:
	@BUILD=release scripts/build $@

help:
	@echo 'make           build for the PostgreSQL of PG_CONFIG=/path/to/pg_config; installs nothing'
	@echo 'make install   copies that into it, or below DESTDIR=…; make uninstall removes it again'
	@echo 'make run       build, start a throw-away PostgreSQL, give a tour; with a terminal, then psql'
	@echo 'make plain     leave dist/ratelimit.sql, the limiter as one SQL file; SCHEMA=limits for another schema'
	@echo 'make playground  build, start a throw-away PostgreSQL, and a web page that shows the limits; PORT=8080'
	@echo 'make example   the same for an application to copy from: a chat on the AI SDK, in Hono and React, or, with'
	@echo '               APP=fastapi, a shop in FastAPI'
	@echo 'make test      the tests of a change, in some minutes; ONLY=rust|pgrx|regress|isolation|server|storms|clients|'
	@echo '               adapters|playground|example|pictures|soak|plain for a part, ONLY=all for all,'
	@echo '               TESTS="a b" for these files of a part (without ONLY: regress)'
	@echo 'make accept    TESTS="a b": runs these, shows what their output changes, and makes it the expected'
	@echo 'make test-all  every test on PostgreSQL 15, 16 and 18, with the release build; an hour or two'
	@echo 'make test-citus  limits on a coordinator and two workers; TESTS="a b" for some. Skips where the PostgreSQL'
	@echo '               of PG_CONFIG has no Citus; builds and installs none'
	@echo 'make test-asserts  regress, isolation, server, storms and soak on a PostgreSQL with assertions: that of PG_CONFIG,'
	@echo '               or one that it builds in target/ from Debian'"'"'s source package; ONLY, TESTS, ACCESS as above'
	@echo 'make soak      crashes, failures, a standby and long life, for some 20 minutes; TESTS="a b", ACCESS=auto'
	@echo 'make prove     the limiter in every order of the steps of a few sessions, over a model of rows; some ten'
	@echo '               minutes, ONLY=short for one, TESTS="0 1000" for these random programs'
	@echo 'make bench     what a call costs next to plain SQL, PL/pgSQL and Redis; some minutes, results in'
	@echo '               target/results; ONLY="hot single" for some works, ACCESS=sql|heap; ONLY=adapters for'
	@echo '               applications with the stores of our packages and with others, in Redis and PostgreSQL'
	@echo 'make pictures  draw docs/pictures from what the extension answers; make test ONLY=pictures compares'
	@echo 'make docs      build the book of docs/ in target/book, with the page that runs in the browser, and check links'
	@echo 'make lint      formatting, clippy, rustdoc, tests without expected output; shell, workflows, spelling, licenses'
	@echo 'make package   leave packages for PostgreSQL 15 to 18 in dist/ (PG=17 for one); make test-packages'
	@echo '               installs each of them into a new system or a throw-away server'
	@echo 'make release   VERSION=1.2.3: checks that all agrees on it, runs every test, and leaves dist/'
	@echo 'make clean     remove target/ and dist/'
	@echo 'run, test, accept, soak, bench, docs and lint install what is missing first, and take PG=16 or'
	@echo 'PG_CONFIG=… too (default: PostgreSQL 15); without an installed one, 16 and 18 are fetched into'
	@echo 'target/. run, test and accept take BUILD=release (default: dev, which is quick to build).'

run plain playground example test test-all test-citus test-asserts accept prove bench pictures lint docs package test-packages release:
	@scripts/$@

soak:
	@BUILD=release TIMES="$${TIMES:-10}" ONLY=soak ACCESS="$${ACCESS:-auto sql}" scripts/test

clean:
	@scripts/server stop all
	rm -rf target dist
