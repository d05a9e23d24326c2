# Calls that the database can't answer now: an error, or where the store is to fail open, a key that is new. All else is
# an error with both.
require_relative "common"

class FailingTest < Test
  def setup
    super
    @heard = []
    @owner = connect("postgres")
    @owners = opened(WAYS["active record"].call(user: "postgres"))
    @name = "failing #{SecureRandom.hex(6)}"
  end

  # Stores that fail closed and open.
  def two(make, **options)
    %i[closed open].map do |on_error|
      db = opened(make.call(**options))
      opened(RateLimitStore.new(db, name: @name, on_error: on_error, on_unchecked: ->(error) { @heard << error }))
    end
  end

  # What the block returns of each store, or the class of its error.
  def both(stores)
    stores.map do |store|
      yield store
    rescue StandardError => e
      e.class
    end
  end

  # The errors of PostgreSQL that the open one heard of.
  def heard
    @heard.map { |error| error.is_a?(PG::Error) ? error.class : error.cause.class }
  end

  # A role of the tests' rights, with a setting.
  def role(setting, rights = "IN ROLE adapter")
    "role_#{SecureRandom.hex(6)}".tap do |name|
      @owner.exec("CREATE ROLE #{name} LOGIN #{rights}")
      @owner.exec("ALTER ROLE #{name} #{setting}") if setting
    end
  end

  # Ends the connections of a role.
  def terminate(role)
    @owner.exec_params("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = $1", [role])
  end

  # Runs the block while another transaction holds a key.
  def held(key)
    @owners.transaction do
      RateLimitStore.new(@owners, name: @name).increment(key)
      yield
    end
  end

  def assert_raised(outcome)
    assert_kind_of Class, outcome
    assert_operator outcome, :<, StandardError
  end

  each_way "a time-out inside the server is not now" do |make|
    stores = two(make, user: role("SET statement_timeout = '50ms'"))
    held("k") do
      closed, open = both(stores) { |store| store.increment("k", 3) }
      assert_raised closed
      assert_equal 3, open
      closed, open = both(stores) { |store| store.write("k", 3) }
      assert_raised closed
      assert_equal false, open
    end
    assert_equal [PG::QueryCanceled] * 2, heard
  end

  each_way "a server that only reads is not now" do |make|
    stores = two(make, user: role("SET default_transaction_read_only = on"))
    closed, open = both(stores) { |store| store.increment("k") }
    assert_raised closed
    assert_equal 1, open
    assert_equal [PG::ReadOnlySqlTransaction], heard
    assert_equal [nil, nil], both(stores) { |store| store.read("k") }
    # What deletes is no request.
    RateLimitStore.new(@owners, name: @name).increment("k")
    (both(stores) { |store| store.delete("k") } + both(stores, &:clear)).each { |outcome| assert_raised outcome }
    assert_equal 1, @heard.size
  end

  each_way "a connection that is lost while it waits is not now, and the next call has another" do |make|
    stores = two(make, user: (role = role(nil)))
    waits = "SELECT true FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock'"
    lost = [0, 1].map do |n|
      held("k") do
        call = Thread.new { both([stores[n]]) { |store| store.increment("k", 3) }.first }
        wait_until { @owner.exec_params(waits, [role]).ntuples == 1 }
        terminate(role)
        call.value
      end
    end
    assert_raised lost[0]
    assert_equal 3, lost[1]
    assert_equal [3, 4], both(stores) { |store| store.increment("k") }
    assert_equal [PG::ConnectionBad], heard
  end

  each_way "a connection that is lost in idleness is replaced" do |make|
    stores = two(make, user: (role = role(nil)))
    both(stores) { |store| store.increment("k") }
    terminate(role)
    assert_equal [3, 4], both(stores) { |store| store.increment("k") }
    assert_empty @heard
  end

  each_way "a refused login is an error" do |make|
    stores = two(make, user: (role = role(nil)))
    both(stores) { |store| store.increment("k") }
    @owner.exec("ALTER ROLE #{role} NOLOGIN")
    terminate(role)
    both(stores) { |store| store.increment("k") }.each { |outcome| assert_raised outcome }
    assert_empty @heard
    @owner.exec("ALTER ROLE #{role} LOGIN")
    assert_equal [3, 4], both(stores) { |store| store.increment("k") }
  end

  each_way "a missing grant is an error" do |make|
    both(two(make, user: role(nil, ""))) { |store| store.increment("k") }.each { |outcome| assert_raised outcome }
    assert_empty @heard
  end

  each_way "a server that is not there is not now" do |make|
    stores = two(make, host: "/nonexistent")
    [[:increment, "k", 3], [:read, "k"], [:write, "k", 3]].zip([3, nil, false]) do |call, unchecked|
      closed, open = both(stores) { |store| store.send(*call) }
      assert_raised closed
      assert_equal [unchecked], [open]
    end
    assert_equal [PG::ConnectionBad] * 3, heard
  end

  each_way "a database that is not there is an error" do |make|
    stores = two(make, dbname: "no_such_database")
    both(stores) { |store| store.increment("k") }.each { |outcome| assert_raised outcome }
    assert_empty @heard
  end

  def test_a_pool_that_has_none_left_is_not_now
    stores = two(WAYS["active record"], pool: 1, checkout_timeout: 0.05)
    pools = @opened.grep(Class).last(2).map(&:connection_pool)
    gates = pools.map { Queue.new }
    taken = pools.zip(gates).map { |pool, gate| Thread.new { pool.with_connection { gate << true && sleep } } }
    gates.each(&:pop)
    assert_equal [ActiveRecord::ConnectionTimeoutError, 1], both(stores) { |store| store.increment("k") }
    taken.each(&:kill).each(&:join)
    assert_equal 1, @heard.size
  end

  def test_in_a_transaction_each_error_is_one
    [false, true].each do |open|
      db = opened(WAYS["active record"].call)
      store = store(db, on_error: open ? :open : :closed, on_unchecked: ->(error) { @heard << error })
      db.transaction do
        db.connection.execute("SET TRANSACTION READ ONLY")
        error = assert_raises(ActiveRecord::StatementInvalid) { store.increment("k") }
        assert_kind_of PG::ReadOnlySqlTransaction, error.cause
        raise ActiveRecord::Rollback
      end
    end
    assert_empty @heard
  end

  def test_who_hears_of_a_call_cannot_stop_it_and_without_one_it_is_a_warning
    db = libpq(host: "/nonexistent")
    assert_equal 1, store(db, on_error: :open, on_unchecked: ->(_) { raise "no logs" }).increment("k")
    assert_output("", /\ARateLimitStore: a request passes unchecked: connection to server/) do
      assert_equal 1, store(db, on_error: :open).increment("k")
    end
  end
end
