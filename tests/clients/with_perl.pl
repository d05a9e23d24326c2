# DBI's line of docs/clients.md, with DBD::Pg, on what setup.sql prepares. Connects with libpq's variables.
use strict;
use warnings;
use DBI;
use JSON::PP;

my $dbh = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
sub right { my ($what, $truth) = @_; die "not so: $what\n" unless $truth }
sub row { my ($sql, @values) = @_; return $dbh->selectrow_hashref($sql, undef, @values) }

# A key, and a denial as a row.
my $take = "SELECT ok, retry_after FROM rl_limit('sendMessage', ?, ?)";
right('it passes', row($take, 80001, 3)->{ok});
my $denied = row($take, 80001, 1);
right('it is denied', !$denied->{ok} && $denied->{retry_after} > 80_000);

# JSON, and a period in seconds.
my $config = encode_json({ kind => 'fixed window', rate => 3, period => 60_000 });
right('a config', row("SELECT ok FROM rl_limit('perl', config => ?)", $config)->{ok});
my $requests = encode_json([{ name => 'quota', key => 'perl' }, { name => 'quota', key => 'others' }]);
right('requests', row('SELECT count(*) FROM rl_limit_all(?)', $requests)->{count} == 2);
right('seconds', row("SELECT rl_fixed_window(3, ?)->'period' AS period", 60)->{period} == 60_000);

# A denial as an error.
my $passed = eval { row("SELECT ok FROM rl_limit('sendMessage', ?, throws => true)", 80001); 1 };
right('PT429', !$passed && $dbh->state eq 'PT429');
right('DETAIL', decode_json($dbh->pg_error_field('pg_diag_message_detail'))->{kind} eq 'RateLimited');

# With pg_bool_tf, ok is a text, and "f" is true. So is a bare call.
$dbh->{pg_bool_tf} = 1;
right('f', row($take, 80001, 1)->{ok} eq 'f');
right('a text', row("SELECT rl_limit('sendMessage', ?)", 80001)->{rl_limit} =~ /^\(f,/);
