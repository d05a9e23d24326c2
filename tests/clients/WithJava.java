import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.OffsetDateTime;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;

/** JDBC's line of docs/clients.md, on what setup.sql prepares. Its argument is the URL of the database. */
public class WithJava {
    static Connection connection;

    static void right(String what, boolean truth) {
        if (!truth) throw new AssertionError("not so: " + what);
    }

    static ResultSet row(String sql, Object... values) throws SQLException {
        var statement = connection.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        var rows = statement.executeQuery();
        rows.next();
        return rows;
    }

    static SQLException caught(String sql, Object... values) {
        try {
            row(sql, values);
        } catch (SQLException e) {
            return e;
        }
        throw new AssertionError("it passed: " + sql);
    }

    public static void main(String[] arguments) throws SQLException {
        connection = DriverManager.getConnection(arguments[0]);
        long user = 70_001;

        // A key, and a denial as a row.
        right("a number is no key", caught("SELECT ok FROM rl_limit('sendMessage', ?)", user).getSQLState().equals("42883"));
        var take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', ?::text, ?)";
        right("it passes", row(take, user, 3).getBoolean("ok"));
        var denied = row(take, user, 1);
        right("it is denied", !denied.getBoolean("ok") && denied.getDouble("retry_after") > 80_000);
        right("a time", denied.getObject("retry_at", OffsetDateTime.class) != null);
        // Never: 4 are more than the capacity. getDouble makes 0.0 of NULL.
        var never = row(take, user, 4);
        right("never", !never.getBoolean("ok") && never.getDouble("retry_after") == 0.0 && never.wasNull());
        right("null", never.getObject("retry_after", Double.class) == null);

        // JSON, and a period.
        var config = "{\"kind\": \"fixed window\", \"rate\": 3, \"period\": 60000}";
        var requests = "[{\"name\": \"quota\", \"key\": \"java\"}, {\"name\": \"quota\", \"key\": \"others\"}]";
        right("a config", row("SELECT ok FROM rl_limit('java', config => ?::jsonb)", config).getBoolean("ok"));
        right("text is no jsonb", caught("SELECT ok FROM rl_limit('java', config => ?)", config).getSQLState().equals("42883"));
        right("requests", row("SELECT count(*) FROM rl_limit_all(?::jsonb)", requests).getInt(1) == 2);
        right("a period", row("SELECT rl_fixed_window(3, ?::interval)->'period'", "1 minute").getString(1).equals("60000"));
        right("seconds", caught("SELECT rl_fixed_window(3, ?::interval)", 60).getSQLState().equals("42846"));

        // A denial as an error.
        var e = caught("SELECT ok FROM rl_limit('sendMessage', ?::text, throws => true)", user);
        right("PT429", e.getSQLState().equals("PT429"));
        right("DETAIL", ((PSQLException) e).getServerErrorMessage().getDetail().startsWith("{\"kind\":\"RateLimited\""));

        // A bare call is a text in an object. A call is a query: executeUpdate fails after it.
        right("an object", row("SELECT rl_limit('sendMessage', ?::text)", user).getObject(1) instanceof PGobject);
        try (var statement = connection.createStatement()) {
            statement.executeUpdate("SELECT ok FROM rl_limit('sendMessage', 'update')");
            right("a result", false);
        } catch (SQLException update) {
            right("a result", update.getSQLState().equals("0100E"));
        }
        right("it was taken", row("SELECT remaining FROM rl_check('sendMessage', 'update')").getDouble(1) == 2);
        connection.close();
    }
}
