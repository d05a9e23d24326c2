# Applications under puma, each with processes of its own: many requests at once, and their answers when the
# server goes.
require_relative "common"
require "tmpdir"

class ApplicationTest < Test
  # A puma of application.ru with this number of processes, which answers by a socket.
  class Puma
    def initialize(folder, processes: 0, **given)
      @socket = "#{folder}/#{SecureRandom.hex(4)}.sock"
      @log = "#{@socket}.log"
      environment = given.transform_keys { |key| key.to_s.upcase }.transform_values(&:to_s)
      command = ["puma", "-e", "production", "-t", "16:16", "-w", processes.to_s, "-b", "unix://#{@socket}"]
      @process = Process.spawn(environment, *command, "#{__dir__}/application.ru", %i[out err] => @log)
      Timeout.timeout(60) { sleep 0.01 until File.socket?(@socket) }
    rescue Timeout::Error
      raise "puma didn't start: #{log}"
    end

    def log
      File.read(@log)
    end

    # The status of the answer.
    def get(client, path = "/")
      UNIXSocket.open(@socket) do |socket|
        socket.write("GET #{path} HTTP/1.0\r\nHost: localhost\r\nX-Client: #{client}\r\n\r\n")
        socket.read[/\AHTTP\S+ (\d+)/, 1].to_i
      end
    end

    def stop
      Process.kill("TERM", @process)
      Process.wait(@process)
    end
  end

  def setup
    super
    @folder = Dir.mktmpdir
    @pumas = []
    @client = "client #{SecureRandom.hex(6)}"
  end

  def teardown
    @pumas.each(&:stop)
    FileUtils.rm_rf(@folder)
    super
  end

  def puma(way, **options)
    @pumas << Puma.new(@folder, way: way, **options)
    @pumas.last
  end

  def server(*what)
    command = ["#{__dir__}/../../../scripts/server", "ctl", ENV.fetch("PGHOST"), *what]
    assert system(*command, %i[out err] => File::NULL), what.inspect
  end

  WAYS.each_key do |way|
    name = way.tr(" ", "_")

    define_method("test_of_a_hundred_requests_at_once_on_two_processes_ten_pass_by_#{name}") do
      puma = puma(way, processes: 2)
      assert_equal({ 200 => 10, 429 => 90 }, at_once(1..100) { puma.get(@client) }.tally)
      assert_equal 200, puma.get("another #{@client}")
    end

    define_method("test_a_restart_of_the_server_loses_no_count_and_fails_no_later_request_by_#{name}") do
      puma = puma(way)
      assert_equal({ 200 => 5 }, at_once(1..5) { puma.get(@client) }.tally)
      server("restart", "-m", "fast")
      assert_equal({ 200 => 5, 429 => 5 }, at_once(1..10) { puma.get(@client) }.tally)
    end

    define_method("test_while_the_server_is_stopped_requests_fail_or_pass_by_#{name}") do
      closed, open = %i[closed open].map { |on_error| puma(way, on_error: on_error) }
      assert_equal [200, 200], [closed.get(@client), open.get(@client)]
      server("stop", "-m", "fast")
      begin
        # On connections that are lost, then on none.
        assert_equal({ 500 => 20 }, at_once(1..20) { closed.get(@client) }.tally)
        assert_equal({ 200 => 20 }, at_once(1..20) { open.get(@client) }.tally)
        # rack-attack denies each knock, counted or not.
        assert_equal [500, 403], [closed.get(@client, "/private"), open.get(@client, "/private")]
      ensure
        server("start")
      end
      assert_equal({ 200 => 8, 429 => 1 }, at_once(1..9) { open.get(@client) }.tally)
      assert_equal 429, closed.get(@client)
      assert_match(/a request passes unchecked: /, open.log)
      refute_match(/unchecked/, closed.log)
    end
  end

  def test_clocks_of_applications_that_are_ten_seconds_apart_make_no_difference_to_what_passes
    pumas = [-5, 5].map { |ahead| puma("active record", ahead: ahead) }
    assert_equal({ 200 => 10, 429 => 90 }, at_once(1..100) { |n| pumas[n % 2].get(@client) }.tally)
  end

  def test_who_knocks_at_once_is_banned
    puma = puma("libpq", processes: 2)
    at_once(1..50) { puma.get(@client, "/private") }
    assert_equal [403, 200], [puma.get(@client), puma.get("another #{@client}")]
  end
end
