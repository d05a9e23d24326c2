# Prints a line a test, as the other adapters' tests do, and no dots.
require "minitest"

class Tap < Minitest::AbstractReporter
  def record(result)
    name = "#{result.klass}: #{result.name.delete_prefix("test_").tr("_", " ")}"
    name += " # SKIP #{result.failure.message}" if result.skipped?
    puts "#{"not " unless result.passed? || result.skipped?}ok - #{name}"
    $stdout.flush
  end
end

module Minitest
  def self.plugin_tap_init(_options)
    reporter.reporters.reject! { |each| each.is_a?(ProgressReporter) }
    reporter.reporters << Tap.new
  end
  extensions << "tap"
end
