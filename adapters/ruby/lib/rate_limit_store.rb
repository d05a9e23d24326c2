# A store for rack-attack, and for rate_limit of Rails, that counts in PostgreSQL by the extension ratelimit or its SQL
# file. https://ratelimit.example/

require "digest"
require "pg"

# Keeps whole numbers that expire. Each call is atomic over all processes, and is one statement.
class RateLimitStore
  # The maximum time of a key, in seconds: three years. Used for a longer one, or none.
  LONGEST = 99_000_000
  # The range of the numbers. A call that would lead out of it adds nothing.
  VALUES = (0..9_999_999)

  # Seconds for which a counter of rack-attack is kept beyond its time, the allowed difference between clocks of
  # application servers: the key names its window by the application's clock.
  CLOCKS = 60

  FILE = File.read(File.join(__dir__, "counters.sql"), encoding: "UTF-8")
  PUT, GET = FILE.gsub(/^--.*\n/, "").split(";\n")
  # Longer by this, each key has expired.
  EXPIRED = -10 * LONGEST
  DELETE = "SELECT @rl_reset($1::text, $2::text)::int"
  CLEAR = "SELECT @rl_reset_keys($1::text)"

  # SQLSTATEs that say "not now": a server that is a standby, full, starting or stopping; too many connections; a
  # time-out inside it.
  NOT_NOW = %w[25006 53100 53200 53300 55P03 57014 57P01 57P02 57P03].freeze
  # Errors of Active Record by name: a connection that could not be made, and a pool with none left.
  CONNECTING = %w[ActiveRecord::ConnectionNotEstablished ActiveRecord::NoDatabaseError].freeze
  POOL = %w[ActiveRecord::ConnectionTimeoutError].freeze
  private_constant :FILE, :PUT, :GET, :EXPIRED, :DELETE, :CLEAR, :NOT_NOW, :CONNECTING, :POOL

  # db: a class of Active Record: a call is made on the connection that the thread has of its pool, or borrows one. Or
  #   the options of PG.connect, a Hash or a String: the store then has connections of its own, one a call at once.
  # name: of the limits that keep the numbers, 1 to 200 bytes. Stores of the same name share them.
  # on_error: :open: where the database can't answer now, a key is new to increment and read. :closed: the error is
  #   raised. Mistakes and refused logins are errors with both, and so is everything in a transaction.
  # on_unchecked: is called with the error of such a call. Default: a line of warn.
  # schema: of the functions. Default: search_path finds them.
  def initialize(db, name: "rack-attack", on_error: :closed, on_unchecked: nil, schema: nil)
    unless db.respond_to?(:connection_pool) || db.is_a?(Hash) || db.is_a?(String)
      raise ArgumentError, "db is a #{db.class}; allowed: a class of Active Record, or the options of PG.connect"
    end
    raise ArgumentError, "name is #{name.inspect}; allowed: 1 to 200 bytes" unless (1..200).cover?(name.to_s.bytesize)
    unless %i[closed open].include?(on_error)
      raise ArgumentError, "on_error is #{on_error.inspect}; allowed: :closed, :open"
    end

    @db = db.is_a?(String) ? options_of(db) : db
    @name = name.to_s
    @open = on_error == :open
    @on_unchecked = on_unchecked || ->(error) { warn "RateLimitStore: a request passes unchecked: #{error.message}" }
    @prefix = schema ? "#{PG::Connection.quote_ident(schema.to_s)}." : ""
    @idle = {}
    at_exit { disown }
  end

  # Adds to a key, and returns its number. A new key, or an expired one, begins at 0, and has expires_in seconds,
  # rounded up. An existing key keeps its time.
  def increment(key, amount = 1, expires_in: nil, **)
    new = [whole(amount, -VALUES.last..VALUES.last), 0].max
    call(PUT, stored(key), amount, new, seconds(expires_in), windowed?(key) ? CLOCKS : 0) { amount }
  end

  # The key's number; nil: no key, or an expired one.
  def read(key, *)
    call(GET, stored(key)) { nil }
  end

  # Sets a key, for expires_in seconds. Returns whether it did. Raises ArgumentError for a number outside VALUES.
  def write(key, value, expires_in: nil, **)
    !call(PUT, stored(key), 1, whole(value), seconds(expires_in), EXPIRED) { nil }.nil?
  end

  # Deletes a key; returns whether it existed. This fails closed, and so do the other methods that delete.
  def delete(key, *)
    call(DELETE, stored(key)) == 1
  end

  # Deletes all keys of the name.
  def clear(*)
    call(CLEAR)
  end

  # The same, for Rack::Attack.reset!, with any pattern.
  def delete_matched(*)
    clear
  end

  # Closes the connections of the store's own that no call uses.
  def close
    idle.pop.close until idle.empty?
  end

  private

  def windowed?(key)
    defined?(Rack::Attack) && key.to_s.match?(/\A#{Regexp.escape(Rack::Attack.cache.prefix.to_s)}:\d+:/)
  end

  # A key that the extension accepts: a longer one, or one that is not text in the database, becomes its hash.
  def stored(key)
    text = key.to_s.dup.force_encoding(Encoding::UTF_8)
    # A key that looks like a hash is hashed, too, so that it can't collide with another key's.
    return text if text.valid_encoding? && text.bytesize <= 1024 && !text.include?("\0") && !text.start_with?("sha256:")

    "sha256:#{Digest::SHA256.hexdigest(text)}"
  end

  def whole(value, range = VALUES)
    return value if value.is_a?(Integer) && range.cover?(value)

    raise ArgumentError, "value is #{value.inspect}; allowed: a whole number in #{range}, since this store counts"
  end

  def seconds(expires_in)
    expires_in ? expires_in.to_f.clamp(1, LONGEST).ceil : LONGEST
  end

  # Returns the number that a statement returns. With a block it may fail open, and then returns the result
  # of the block.
  def call(sql, *values)
    sent = in_transaction = false
    on_connection do |transaction, run|
      in_transaction = transaction
      sent = true
      run.call(sql.gsub("@", @prefix), [@name, *values])[0][0]&.to_i
    end
  rescue StandardError => e
    raise unless @open && block_given? && !in_transaction && not_now?(e, sent)

    begin
      @on_unchecked.call(e)
    rescue StandardError
      # For logs only.
    end
    yield
  end

  # Yields whether the connection is in a transaction, and a lambda that runs a statement on it and returns the rows.
  def on_connection
    if @db.is_a?(Hash)
      own { |connection| yield false, ->(sql, values) { connection.exec_params(sql, values).values } }
    else
      @db.connection_pool.with_connection do |connection|
        # Not by select_all and the like, which answer from the request's query cache.
        run = ->(sql, values) { connection.exec_query(sql, "RateLimitStore", values).rows }
        yield connection.transaction_open?, run
      end
    end
  end

  # Lends a connection of the store's own, and closes it if a call on it fails.
  def own
    connection = idle.pop
    connection = idle.pop until connection.nil? || alive?(connection)
    connection ||= PG.connect(**@db)
    answer = yield connection
    idle.push(connection)
    connection = nil
    answer
  ensure
    connection&.close
  end

  # The store's own connections that no call uses. Another process doesn't use them, for example after a fork.
  def idle
    @idle[Process.pid] ||= []
  end

  # Separates a process from connections of the one that forked it: when it ends, libpq would end their sessions.
  def disown
    @idle.except(Process.pid).each_value { |theirs| theirs.each { |each| each.socket_io.reopen(IO::NULL) } }
  end

  # Whether the server has left the connection open, without asking it.
  def alive?(connection)
    2.times { connection.consume_input } # first comes the reason
    true
  rescue PG::Error
    connection.close
    false
  end

  # sent: whether there was a connection.
  def not_now?(error, sent)
    errors = [error]
    errors << errors.last.cause while errors.last.cause
    of_server = errors.grep(PG::Error)
    states = of_server.filter_map { |each| each.result&.error_field(PG::Result::PG_DIAG_SQLSTATE) }
    # PgBouncer uses 08P01 for a refused login, too.
    return states.all? { |state| NOT_NOW.include?(state) || state.match?(/\A08(?!P01)/) } unless states.empty?
    return true if named?(errors, POOL)
    return false unless of_server.any? { |each| each.is_a?(PG::ConnectionBad) || each.is_a?(PG::UnableToSend) }

    (sent && !named?(errors, CONNECTING)) || gone?
  end

  def named?(errors, names)
    errors.any? { |error| error.class.ancestors.any? { |ancestor| names.include?(ancestor.name) } }
  end

  # Whether no server answers, or it is starting or stopping; otherwise it has refused the login. Takes at
  # most two seconds.
  def gone?
    address = @db.is_a?(Hash) ? @db : @db.connection_pool.db_config.configuration_hash.slice(:host, :port)
    [PG::PQPING_REJECT, PG::PQPING_NO_RESPONSE].include?(PG::Connection.ping(**address, connect_timeout: 2))
  end

  def options_of(text)
    given = PG::Connection.conninfo_parse(text).select { |option| option[:val] }
    given.to_h { |option| [option[:keyword].to_sym, option[:val]] }
  end
end
