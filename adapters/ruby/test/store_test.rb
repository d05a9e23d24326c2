# What a store returns, by each way to the database.
require_relative "common"

class StoreTest < Test
  each_way "numbers are counted, set, read and deleted" do |make|
    store = store(opened(make.call))
    assert_equal [1, 2, 3], Array.new(3) { store.increment("k", 1, expires_in: 60) }
    assert_equal 8, store.increment("k", 5, expires_in: 60)
    assert_equal [8, nil], [store.read("k"), store.read("other")]
    assert_equal [true, false, nil], [store.delete("k"), store.delete("k"), store.read("k")]
    assert_equal [true, 7, 8], [store.write("k", 7, expires_in: 60), store.read("k"), store.increment("k")]
    assert_equal [true, 5, 4], [store.write("k", 5), store.read("k"), store.increment("k", -1)]
    store.increment("other")
    assert_equal 2, store.clear
    assert_equal [nil, nil], [store.read("k"), store.read("other")]
  end

  def test_stores_of_one_name_share_their_keys_and_those_of_another_have_their_own
    one, other = "one #{SecureRandom.hex}", "other #{SecureRandom.hex}"
    stores = [one, one, other].map { |name| opened(RateLimitStore.new(libpq, name: name)) }
    assert_equal([1, 2, 1], stores.map { |store| store.increment("k") })
  end

  def test_a_number_stops_at_the_ends_of_its_range
    store = store(libpq)
    store.write("most", 9_999_998)
    assert_equal [9_999_999] * 3, [store.increment("most"), store.increment("most"), store.read("most")]
    assert_equal 9_999_998, store.increment("most", -1)
    store.write("least", 0)
    assert_equal [0, 1], [store.increment("least", -1), store.increment("least")]
    assert_equal [0, 1], [store.increment("new", -1), store.increment("new")]
  end

  def test_long_keys_binary_ones_and_numbers_are_keys
    store = store(libpq)
    keys = ["a" * 1024, "a" * 1025, "a" * 1026, "\0", "\xff".b, "\xff\0".b, "sha256:", "é", 5, :symbol, ""]
    assert_equal([1] * keys.size, keys.map { |key| store.increment(key) })
    assert_equal([2] * keys.size, keys.map { |key| store.increment(key) })
    assert_equal [3, 3], [store.increment("é".b), store.increment("5")]
  end

  def test_what_is_not_a_whole_number_is_refused
    store = store(libpq)
    ["1", 1.5, true, nil, 10_000_000, -1].each do |value|
      error = assert_raises(ArgumentError) { store.write("k", value) }
      assert_match(/allowed: a whole number in 0\.\.9999999/, error.message)
    end
    assert_nil store.read("k")
  end

  def test_options_are_checked
    assert_match(/allowed: /, assert_raises(ArgumentError) { RateLimitStore.new(Object.new) }.message)
    [{ name: "" }, { name: "a" * 201 }, { on_error: "open" }].each do |options|
      assert_match(/allowed: /, assert_raises(ArgumentError) { RateLimitStore.new(libpq, **options) }.message)
    end
  end

  each_way "calls at once on a new key return each number once" do |make|
    store = store(opened(make.call(**(make == WAYS["libpq"] ? {} : { pool: 20 }))))
    counted = at_once(1..20) { Array.new(5) { store.increment("k", expires_in: 60) } }
    assert_equal (1..100).to_a, counted.flatten.sort
  end

  each_way "of two who set a new key the second waits for the first" do |make|
    first = opened(WAYS["active record"].call)
    store, other = [first, opened(make.call)].map { |db| opened(RateLimitStore.new(db, name: "two")) }
    store.clear
    setting = nil
    first.transaction do
      store.write("k", 3, expires_in: 60)
      setting = Thread.new { other.write("k", 5, expires_in: 60) }
      wait_until { connect("postgres").exec("SELECT FROM pg_locks WHERE NOT granted").ntuples.positive? }
    end
    assert_equal [true, 5, 6], [setting.value, store.read("k"), store.increment("k")]
  end

  def test_the_schema_is_where_the_functions_are
    elsewhere = libpq(dbname: "#{ENV.fetch("PGDATABASE")}_elsewhere")
    assert_raises(PG::UndefinedFunction) { store(elsewhere).increment("k") }
    assert_equal 1, store(elsewhere, schema: "limits").increment("k")
    assert_equal 0, RateLimitStore.new(elsewhere, name: "none", schema: :limits).clear
  end

  # Rails' cache of queries is on during each request.
  def test_no_call_is_answered_by_a_cache_of_queries
    db = opened(WAYS["active record"].call)
    store = store(db)
    db.connection.cache do
      assert db.connection.query_cache_enabled
      assert_equal [1, 2, 3], Array.new(3) { store.increment("k", expires_in: 60) }
      assert_equal 3, store.read("k")
      store.increment("k")
      assert_equal 4, store.read("k")
      store.delete("k")
      assert_nil store.read("k")
    end
  end

  def test_a_connection_of_the_thread_is_used_so_a_rollback_takes_back_what_was_counted
    db = opened(WAYS["active record"].call(pool: 1, checkout_timeout: 1))
    store = store(db)
    db.transaction do
      assert_equal 1, store.increment("k")
      raise ActiveRecord::Rollback
    end
    assert_equal 1, store.increment("k")
  end

  def test_a_string_says_where_the_server_is
    text = "host=#{ADDRESS[:host]} port=#{ADDRESS[:port]} user=#{ENV.fetch("PGUSER")} dbname=#{ENV.fetch("PGDATABASE")}"
    assert_equal 1, store(text).increment("k")
    assert_raises(PG::Error) { store("host=a b") }
  end

  def test_a_process_that_forks_shares_no_connection
    store = store(libpq(application_name: application = "fork #{SecureRandom.hex(6)}"))
    store.increment("k")
    done, go_on = IO.pipe, IO.pipe
    child = fork do
      done[1].puts(store.increment("k"))
      go_on[0].gets
    end
    assert_equal [2, 3], Timeout.timeout(60) { [done[0].gets.to_i, store.increment("k")] }
    owner = connect("postgres")
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY backend_start"
    ours, *others = owner.exec_params(sessions, [application]).column_values(0)
    assert_equal 1, others.size
    go_on[1].puts
    Process.wait(child)
    child = nil
    assert_equal 4, store.increment("k")
    # The child has ended its own session, not ours.
    wait_until { owner.exec_params(sessions, [application]).ntuples == 1 }
    assert_equal [ours], owner.exec_params(sessions, [application]).column_values(0)
  ensure
    Process.kill("KILL", child) if child
  end

  # As by a time-out of the application.
  def test_after_a_call_that_was_broken_off_others_are_made
    db = opened(WAYS["active record"].call)
    store = store(libpq)
    db.transaction do
      RateLimitStore.new(db, name: store.instance_variable_get(:@name)).increment("k")
      call = Thread.new { store.increment("k") }
      call.report_on_exception = false
      wait_until { connect("postgres").exec("SELECT FROM pg_locks WHERE NOT granted").ntuples.positive? }
      call.raise("broken off")
      assert_raises(RuntimeError) { call.join }
      Timeout.timeout(60) { assert_equal 1, store.increment("other") }
      raise ActiveRecord::Rollback
    end
  end

  def test_a_thread_keeps_no_connection_that_it_had_none_of
    db = opened(WAYS["active record"].call)
    store(db).increment("k")
    refute db.connection_pool.active_connection?
  end
end
