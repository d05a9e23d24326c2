<?php
// The lines of docs/clients.md for PHP: pg_* and PDO, on what setup.sql prepares.
//
// Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_limit_all and rl_check.

function right(string $what, bool $truth): void
{
    if (!$truth) {
        fwrite(STDERR, "not so: $what\n");
        exit(1);
    }
}

$config = json_encode(['kind' => 'fixed window', 'rate' => 3, 'period' => 60000]);
$requests = json_encode([['name' => 'quota', 'key' => 'php'], ['name' => 'quota', 'key' => 'others']]);

// 1. pg_*. Each value is a text, and 'f' is true.
$connection = pg_connect('');
$query = fn (string $sql, array $values) => pg_fetch_assoc(pg_query_params($connection, $sql, $values));
$take = 'SELECT ok, retry_after FROM rl_limit(\'sendMessage\', $1, $2)';
right('it passes', $query($take, [50001, 3]) === ['ok' => 't', 'retry_after' => null]);
$denied = $query($take, [50001, 1]);
right('it is denied', $denied['ok'] === 'f' && (bool) $denied['ok'] && $denied['retry_after'] > 80000);
right('a config', $query('SELECT ok FROM rl_limit(\'php\', config => $1)', [$config])['ok'] === 't');
right('requests', pg_num_rows(pg_query_params($connection, 'SELECT ok FROM rl_limit_all($1)', [$requests])) === 2);
// pg_query_params returns false for an error, without its SQLSTATE.
$throws = 'SELECT ok FROM rl_limit(\'sendMessage\', $1, throws => true)';
right('an error', @pg_query_params($connection, $throws, [50001]) === false);
pg_send_query_params($connection, $throws, [50001]);
$result = pg_get_result($connection);
right('PT429', pg_result_error_field($result, PGSQL_DIAG_SQLSTATE) === 'PT429');
right('DETAIL', json_decode(pg_result_error_field($result, PGSQL_DIAG_MESSAGE_DETAIL))->kind === 'RateLimited');
pg_get_result($connection);
// false is sent as an empty text. A number is a period in seconds.
right('false', @pg_query_params($connection, 'SELECT $1::boolean', [false]) === false);
right('seconds', $query('SELECT rl_fixed_window(3, $1)->\'period\' AS period', [60])['period'] === '60000');
$bare = $query('SELECT rl_limit(\'sendMessage\', $1)', [50001])['rl_limit'];
right('a bare call is a text', str_starts_with($bare, '(f,'));

// 2. PDO.
$pdo = new PDO(sprintf('pgsql:host=%s;dbname=%s', getenv('PGHOST'), getenv('PGDATABASE')), getenv('PGUSER'));
$query = function (string $sql, array $values) use ($pdo) {
    $statement = $pdo->prepare($sql);
    $statement->execute($values);
    return $statement->fetchAll(PDO::FETCH_ASSOC);
};
$take = "SELECT ok, retry_after FROM rl_limit('sendMessage', :key::text, count => :count)";
right('it passes', $query($take, ['key' => 50002, 'count' => 3]) === [['ok' => true, 'retry_after' => null]]);
[$denied] = $query($take, ['key' => 50002, 'count' => 1]);
right('it is denied', $denied['ok'] === false && is_string($denied['retry_after']));
right('a config', $query("SELECT ok FROM rl_limit('php', 'b', config => ?)", [$config]) === [['ok' => true]]);
right('requests', count($query('SELECT ok FROM rl_limit_all(?)', [$requests])) === 2);
$throws = "SELECT ok FROM rl_limit('sendMessage', ?, throws => true)";
try {
    $query($throws, [50002]);
    right('it is denied', false);
} catch (PDOException $e) {
    right('PT429', $e->errorInfo[0] === 'PT429' && $e->getCode() === 'PT429');
    // DETAIL is a line of the message.
    right('DETAIL', preg_match('/^DETAIL:  (.*)$/m', $e->errorInfo[2], $match) === 1);
    right('DETAIL', json_decode($match[1])->kind === 'RateLimited');
    try {
        new RuntimeException($e->getMessage(), $e->getCode());
        right('a TypeError', false);
    } catch (TypeError) {
        new RuntimeException($e->getMessage(), 0, $e);
    }
}
try {
    $query("SELECT ok FROM rl_limit('sendMessage', ?, throws => ?)", [50002, false]);
    right('false is refused', false);
} catch (PDOException $e) {
    right('an empty text', $e->errorInfo[0] === '22P02');
}
[['rl_limit' => $bare]] = $query("SELECT rl_limit('sendMessage', ?)", [50002]);
right('a bare call is a text', str_starts_with($bare, '(f,'));
